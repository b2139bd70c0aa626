"""How one weight learns: from the sum of its gradients to its new value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
  from tfpipe.lazy import tf
  from tfpipe.optimizers.base import Optimizer, Slots


class Scalars(NamedTuple):
  """What an update of all weights has decided.

  Attributes:
    divisor: of the sums of gradients.
    factor: what the mean gradients are multiplied by, to clip them.
    rate: learning rate.
    number: of the update, from 1, as float32.
    ema_rate: 1 - decay of the averages.
  """

  divisor: tf.Tensor
  factor: tf.Tensor
  rate: tf.Tensor
  number: tf.Tensor
  ema_rate: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Rule:
  """Pure functions; the fields are `Learner`'s Params."""

  optimizer: Optimizer
  clip_norm: float
  l2: float
  ema_decay: float

  def mean(
    self, total: tf.Tensor, divisor: tf.Tensor, weight: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns a gradient of the mean loss, with the L2 term of a weight."""
    gradient = total / divisor
    return gradient if weight is None else gradient + self.l2 * weight

  def new(
    self,
    weight: tf.Tensor,
    total: tf.Tensor,
    slots: Slots,
    scalars: Scalars,
    *,
    l2: bool,
  ) -> tuple[tf.Tensor, Slots]:
    """Returns the new weight and slots.

    Args:
      weight: the old one.
      total: sum of its gradients.
      slots: the old ones, by name.
      scalars: of the update.
      l2: whether the weight has an L2 term.
    """
    gradient = self.mean(total, scalars.divisor, weight if l2 else None)
    if self.clip_norm:
      gradient *= scalars.factor
    return self.optimizer.update(weight, gradient, slots, scalars.rate, scalars.number)

  def move(
    self, average: tf.Tensor, new_weight: tf.Tensor, scalars: Scalars
  ) -> tf.Tensor:
    """Returns what the average of a weight becomes less by."""
    return scalars.ema_rate * (average - new_weight)
