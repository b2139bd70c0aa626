"""Gradient descent, plain and with momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfpipe.checks import check_bool, check_number
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  from tfpipe.optimizers.base import Slots, Tensor


class SGD(Optimizer):
  """Stochastic gradient descent: `w ← w - lr·g`. It keeps no slot."""

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns no slot."""
    return {}

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    return weight - rate * grad, {}


class Momentum(Optimizer):
  """Gradient descent with momentum, in the form of TensorFlow 1.

  `v ← momentum·v + g`, then `w ← w - lr·v`; with `nesterov` `w ← w - lr·(g +
  momentum·v)`. The learning rate scales the whole velocity, so a change of it also acts
  on what has been gathered. Source: Sutskever et al., ICML 2013 ("On the importance of
  initialization and momentum in deep learning"), section 2, up to that scaling.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("momentum", 0.9, "Share of the velocity kept at each update, in [0, 1).")
    p.Define("nesterov", False, "Whether to look ahead by one step of momentum.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._momentum = check_number(self, params, "momentum", "[0, 1)")
    self._nesterov = check_bool(self, params, "nesterov")

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns the velocity, `momentum`, of the weight's shape."""
    return {"momentum": SlotSpec(shape)}

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    velocity = self._momentum * slots["momentum"] + grad
    move = grad + self._momentum * velocity if self._nesterov else velocity
    return weight - rate * move, {"momentum": velocity}
