"""Readings of the clock in the graph of a step."""

from __future__ import annotations

from tfpipe.lazy import tf


class Clock:
  """Reads the time where it stands: after all control dependencies in scope."""

  def __init__(self) -> None:
    def reading(after: tf.Tensor) -> tf.Tensor:
      with tf.control_dependencies([after]):
        return tf.timestamp()

    # tf.function puts ops with state in one order over all devices, which would be no
    # pipeline any more; a call is not one of them.
    self._function = tf.function(reading, autograph=False).get_concrete_function(
      tf.TensorSpec([])
    )

  def read(self) -> tf.Tensor:
    """Gives the seconds since 1970, float64, when what is in scope is done."""
    # Inlining undoes control dependencies of a call, not those of its arguments.
    after = tf.identity(tf.constant(0.0))
    (secs,) = tf.raw_ops.PartitionedCall(
      args=[after], Tout=[tf.float64], f=self._function
    )
    return tf.identity(secs)
