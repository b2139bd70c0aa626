"""What stages exchange by: the one thing in which TPU cores and CPU devices differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from tfpipe.lazy import tf

Pairs = Sequence[tuple[int, int]]
Groups = Sequence[Sequence[int]]


class Collectives(Protocol):
  """Exchanges between the replicas of a program, which all call each in one order."""

  def permute(self, value: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Sends a value: for (a, b) from replica a to b; who gets none has zeros."""
    ...

  def sum(self, value: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Adds up the values of each group of replicas; each replica is in one group."""
    ...


class Tpu:
  """Exchanges between TPU cores, within `strategy.run` of a TPUStrategy."""

  def permute(self, value: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Sends along the links of the chips."""
    return tf.raw_ops.CollectivePermute(input=value, source_target_pairs=list(pairs))

  def sum(self, value: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Adds up on the cores."""
    return tf.raw_ops.CrossReplicaSum(input=value, group_assignment=list(groups))


class Alone:
  """Stands for exchanges where one device's program is only compiled.

  What is computed is then wrong; how much is computed, and where, is not: a compiler
  knows as little of what would arrive as it would know of another device.

  Args:
    unknown: float32 vector, of which each exchange takes a number.

  Attributes:
    sent: all that the device has given; a program must return it, or it is left out.
  """

  def __init__(self, unknown: tf.Tensor) -> None:
    self._unknown = iter(tf.unstack(unknown))
    self.sent: list[tf.Tensor] = []

  def permute(self, value: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Gives what a compiler cannot know."""
    self.sent.append(value)
    return value + tf.cast(next(self._unknown), value.dtype)

  def sum(self, value: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Gives what a compiler cannot know."""
    return self.permute(value, ())


class Virtual:
  """Exchanges between logical CPUs: everybody gets all, and takes what is meant.

  Args:
    replica: int32 scalar, the number of this one.
    num_replicas: how many there are.
    group: a number of these devices, for this program alone (`new_group`).
  """

  def __init__(self, replica: tf.Tensor, num_replicas: int, group: int) -> None:
    self._replica = replica
    self._num = num_replicas
    self._group = group
    self._instances = itertools.count(1)

  def permute(self, value: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Takes the value of the replica that sends to this one."""
    senders = [-1] * self._num
    for sender, receiver in pairs:
      senders[receiver] = sender
    sender = tf.constant(senders)[self._replica]
    found = self._all(value)[tf.maximum(sender, 0)]
    return tf.where(sender < 0, tf.zeros_like(found), found)

  def sum(self, value: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Adds up the values of the replicas in this one's group, in order."""
    group_of = {member: group for group in groups for member in group}
    members = tf.constant([group_of[replica] for replica in range(self._num)])
    return tf.reduce_sum(tf.gather(self._all(value), members[self._replica]), axis=0)

  def _all(self, value: tf.Tensor) -> tf.Tensor:
    """Gives the values of all replicas, [replicas, ...]."""
    # There is no kernel for bfloat16, which float32 holds exactly.
    dtype = tf.float32 if value.dtype == tf.bfloat16 else value.dtype
    found = tf.raw_ops.CollectiveGather(
      input=tf.cast(value, dtype)[None],
      group_size=self._num,
      group_key=self._group,
      instance_key=next(self._instances),
      shape=[self._num, *value.shape],
    )
    found.set_shape([self._num, *value.shape])
    return tf.cast(found, value.dtype)


_GROUPS = itertools.count(7001)


def new_group() -> int:
  """Gives a number that no other group of devices of this process has."""
  return next(_GROUPS)
