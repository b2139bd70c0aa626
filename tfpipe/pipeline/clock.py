"""Readings of the clock in the graph of a step."""

from __future__ import annotations

from tfpipe.lazy import tf

HOST = "/device:CPU:0"


class Clock:
  """Reads the time where it stands: after all control dependencies in scope.

  The clock is the host's. Of another device it takes a copy that waits for what the
  device was given to do.
  """

  def __init__(self) -> None:
    def reading(after: tf.Tensor) -> tf.Tensor:
      with tf.control_dependencies([after]):
        return tf.timestamp()

    # tf.function puts ops with state in one order over all devices, which would be no
    # pipeline any more; a call is not one of them.
    self._function = tf.function(reading, autograph=False).get_concrete_function(
      tf.TensorSpec([])
    )

  def read(self, device: str = HOST) -> tf.Tensor:
    """Gives the seconds since 1970, float64, when a device did all that is in scope."""
    # Inlining undoes control dependencies of a call, not those of its arguments.
    with tf.device(device):
      after = tf.identity(tf.constant(0.0))
    with tf.device(device if "CPU" in device.upper() else HOST):
      (secs,) = tf.raw_ops.PartitionedCall(
        args=[after], Tout=[tf.float64], f=self._function
      )
      return tf.identity(secs)
