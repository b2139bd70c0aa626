"""RMSProp as TensorFlow 1 defined it, which AmoebaNet's settings are made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfpipe.checks import check_number
from tfpipe.lazy import tf
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  from tfpipe.optimizers.base import Slots, Tensor


class RMSProp(Optimizer):
  """RMSProp with TensorFlow 1's semantics.

  `s ← decay·s + (1-decay)·g²`, `v ← momentum·v + lr·g/√(s+epsilon)`, `w ← w - v`.
  The mean square `s` starts at 1, epsilon is inside the root, and the velocity gathers
  steps that the learning rate has scaled already. With the epsilons used in practice
  (0.1 and 1) each of the three matters. Source: Tieleman and Hinton, Coursera 2012,
  lecture 6.5; the settings of AmoebaNet: Real et al., arXiv:1802.01548.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("decay", 0.9, "Share of the mean square kept at each update, in [0, 1).")
    p.Define("momentum", 0.0, "Share of the velocity kept, in [0, 1); 0 needs no slot.")
    p.Define("epsilon", 1e-10, "Number above 0 added to the mean square in the root.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._decay = check_number(self, params, "decay", "[0, 1)")
    self._momentum = check_number(self, params, "momentum", "[0, 1)")
    self._epsilon = check_number(self, params, "epsilon", "(0, inf)")

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns `mean_square`, and `momentum` if there is any, of the weight's shape."""
    specs = {"mean_square": SlotSpec(shape, initial=1.0)}
    if self._momentum:
      specs["momentum"] = SlotSpec(shape)
    return specs

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    kept = self._decay * slots["mean_square"]
    mean_square = kept + (1 - self._decay) * tf.square(grad)
    move = rate * grad / tf.sqrt(mean_square + self._epsilon)
    new_slots = {"mean_square": mean_square}
    if self._momentum:
      move = self._momentum * slots["momentum"] + move
      new_slots["momentum"] = move
    return weight - move, new_slots
