"""Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tfpipe.checks import check_number
from tfpipe.lazy import tf
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  from tfpipe.optimizers.base import Slots, Tensor


class Adam(Optimizer):
  """Adam.

  With t the number of the update: `m ← β1·m + (1-β1)·g`, `v ← β2·v + (1-β2)·g²`,
  `w ← w - lr·m̂/(√v̂ + epsilon)`, where `m̂ = m/(1-β1^t)` and `v̂ = v/(1-β2^t)`. Source:
  Kingma and Ba, arXiv:1412.6980, algorithm 1 (epsilon added to the corrected root,
  unlike the variant at the end of its section 2 that Keras uses).
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("beta1", 0.9, "Share of the first moment kept at each update, in [0, 1).")
    p.Define("beta2", 0.999, "Share of the second moment kept, in [0, 1).")
    p.Define("epsilon", 1e-8, "Number above 0 added to the root of the second moment.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._beta1 = check_number(self, params, "beta1", "[0, 1)")
    self._beta2 = check_number(self, params, "beta2", "[0, 1)")
    self._epsilon = check_number(self, params, "epsilon", "(0, inf)")

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns the moments `m` and `v`, of the weight's shape."""
    return {"m": SlotSpec(shape), "v": SlotSpec(shape)}

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    first = self._beta1 * slots["m"] + (1 - self._beta1) * grad
    second = self._beta2 * slots["v"] + (1 - self._beta2) * tf.square(grad)
    corrected = rate * _correction(self._beta1, step)
    root = tf.sqrt(second * _correction(self._beta2, step))
    move = corrected * first / (root + self._epsilon)
    return weight - move, {"m": first, "v": second}


class AdamW(Adam):
  """Adam with decoupled weight decay of every weight.

  Adam's update plus `w ← w - lr·weight_decay·w`, from the weight before the update.
  Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2, where the learning rate
  here is their schedule multiplier times their α, and multiplies the decay as well.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("weight_decay", 0.01, "Decay per unit of learning rate, at least 0.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._weight_decay = check_number(self, params, "weight_decay", "[0, inf)")

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    new_weight, new_slots = super().update(weight, grad, slots, rate, step)
    return new_weight - rate * self._weight_decay * weight, new_slots


def _correction(beta: float, step: Tensor) -> Tensor:
  """Returns `1/(1 - beta^step)` without the cancellation of that formula in float32."""
  if beta == 0:
    return tf.ones_like(step)
  return -1.0 / tf.math.expm1(step * math.log(beta))
