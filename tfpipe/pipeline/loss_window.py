"""The losses of the last steps, by which a spike of the next one is known."""

from __future__ import annotations

import math

from tfpipe.lazy import tf

LENGTH = 32
"""Steps whose losses are remembered."""


class LossWindow:
  """Compares each loss with the median of those before it.

  It is part of a run's state: whether a loss is a spike does not depend on where a run
  was interrupted. A spike is remembered as well, so that a lasting rise is none for
  long. What is not finite is not remembered.

  Args:
    factor: a loss above this many medians is a spike.
    refuses: whether such a mini-batch must not be learned from.
    device: where the losses are.

  Attributes:
    losses: float32 variable [LENGTH], the oldest first; NaN where there was none yet.
    refuses: as given.
  """

  def __init__(self, factor: float, *, refuses: bool, device: str) -> None:
    self._factor = factor
    self.refuses = refuses
    with tf.device(device):
      self.losses = tf.Variable(
        tf.fill([LENGTH], math.nan), trainable=False, name="recent_losses"
      )

  def add(self, loss: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Judges a loss and remembers it, in the graph under construction.

    Args:
      loss: float32 scalar, the mean over a mini-batch.

    Returns:
      whether it is a spike, a bool scalar; the median. None is a spike before there are
      LENGTH losses, or with a median that is not above 0.
    """
    with tf.device(self.losses.device):
      recent = self.losses.read_value()
      ordered = tf.sort(recent)
      median = (ordered[LENGTH // 2 - 1] + ordered[LENGTH // 2]) / 2
      full = tf.reduce_all(tf.math.is_finite(recent))
      spike = full & (median > 0) & (loss > self._factor * median)
      moved = tf.concat([recent[1:], loss[None]], axis=0)
      self.losses.assign(tf.where(tf.math.is_finite(loss), moved, recent))
      return spike, median
