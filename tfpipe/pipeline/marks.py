"""How far each device is in the step that runs, to be read while it runs."""

from __future__ import annotations

from tfpipe.lazy import tf
from tfpipe.optimizers.gradients import HOST
from tfpipe.traced import trace


class Marks:
  """Counts the actions that each device has done, in all steps together.

  A count is a variable on the host, so that another thread can read it at any time. No
  action waits for it.

  Args:
    num_devices: of the schedule.
  """

  def __init__(self, num_devices: int) -> None:
    with tf.device(HOST):
      self._counts = [
        tf.Variable(tf.zeros([], tf.int64), trainable=False, name=f"done_{device}")
        for device in range(num_devices)
      ]
    specs = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.resource)]
    self._count = trace(_count, specs)
    self._added: list[tf.Tensor] = []

  def add(self, device: int, token: tf.Tensor) -> None:
    """Counts an action in the graph under construction.

    Args:
      device: its number in the schedule.
      token: int64 scalar that is there when the action is done.
    """
    with tf.device(HOST), tf.name_scope(f"mark{device}"):
      (added,) = self._count(token, self._counts[device].handle)
    self._added.append(added)

  def taken(self) -> list[tf.Tensor]:
    """Gives what a step has to wait for, so that all its actions are counted."""
    added, self._added = self._added, []
    return added

  def read(self) -> list[int]:
    """Gives the counts of the devices."""
    return [int(count.numpy()) for count in self._counts]


def _count(token: tf.Tensor, handle: tf.Tensor) -> list[tf.Tensor]:
  after = tf.identity(token)
  with tf.control_dependencies([after]):
    one = tf.ones([], tf.int64)
    tf.raw_ops.AssignAddVariableOp(resource=handle, value=one)
  return [after]
