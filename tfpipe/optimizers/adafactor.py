"""Adafactor: second moments in sublinear memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfpipe.checks import check_bool, check_number
from tfpipe.lazy import tf
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  from tfpipe.optimizers.base import Slots, Tensor


class Adafactor(Optimizer):
  """Adafactor without momentum.

  With t the number of the update and `β = 1 - t^-decay_exponent`:
  `V ← β·V + (1-β)·(g² + epsilon)`, `U = g/√V`, `U ← U/max(1, rms(U)/clip_threshold)`,
  `w ← w - α·U`. Of a weight whose last two axes are longer than 1, only the means of V
  over rows (`row`) and columns (`column`) of these axes are kept, and V is their outer
  product over the mean of `row`.

  The step size α is the learning rate; with `relative_step` at most `1/√t`; with
  `scale_parameter` times `max(rms(w), min_scale)`. Source: Shazeer and Stern,
  arXiv:1804.04235, algorithms 4 to 6; sections 7 and 8 for decay and step size.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("decay_exponent", 0.8, "The decay of V is 1 - t^-this; in (0, 1].")
    p.Define("epsilon", 1e-30, "Number above 0 added to the squared gradient.")
    p.Define("clip_threshold", 1.0, "Largest root mean square of U, above 0.")
    p.Define("scale_parameter", False, "Whether the step grows with the weight's size.")
    p.Define("min_scale", 1e-3, "Smallest size taken with scale_parameter, above 0.")
    p.Define("relative_step", False, "Whether to bound the learning rate by 1/sqrt(t).")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._decay_exponent = check_number(self, params, "decay_exponent", "(0, 1]")
    self._epsilon = check_number(self, params, "epsilon", "(0, inf)")
    self._clip_threshold = check_number(self, params, "clip_threshold", "(0, inf)")
    self._scale_parameter = check_bool(self, params, "scale_parameter")
    self._min_scale = check_number(self, params, "min_scale", "(0, inf)")
    self._relative_step = check_bool(self, params, "relative_step")

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns `row` and `column` of a factored weight, else `v` of its shape."""
    if not _is_factored(shape):
      return {"v": SlotSpec(shape)}
    return {
      "row": SlotSpec(shape[:-1]),
      "column": SlotSpec((*shape[:-2], shape[-1])),
    }

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update; see `Optimizer.update`."""
    new_slots, move = self._precondition(grad, slots, step)
    move /= tf.maximum(1.0, _rms(move) / self._clip_threshold)
    return weight - self._step_size(weight, rate, step) * move, new_slots

  def _precondition(
    self, grad: Tensor, slots: Slots, step: Tensor
  ) -> tuple[Slots, Tensor]:
    """Returns the new slots and g/√V."""
    rate = tf.pow(step, -self._decay_exponent)
    square = tf.square(grad) + self._epsilon

    def average(slot: str, value: Tensor) -> Tensor:
      return (1 - rate) * slots[slot] + rate * value

    if "v" in slots:
      v = average("v", square)
      return {"v": v}, grad * tf.math.rsqrt(v)
    row = average("row", tf.reduce_mean(square, axis=-1))
    column = average("column", tf.reduce_mean(square, axis=-2))
    # The roots one by one: the product of a row and a column may underflow.
    mean = tf.reduce_mean(row, axis=-1, keepdims=True)
    row_factor = tf.expand_dims(tf.math.rsqrt(row) * tf.sqrt(mean), axis=-1)
    column_factor = tf.expand_dims(tf.math.rsqrt(column), axis=-2)
    return {"row": row, "column": column}, grad * row_factor * column_factor

  def _step_size(self, weight: Tensor, rate: Tensor, step: Tensor) -> Tensor:
    if self._relative_step:
      rate = tf.minimum(rate, tf.math.rsqrt(step))
    if self._scale_parameter:
      rate *= tf.maximum(_rms(weight), self._min_scale)
    return rate


def _is_factored(shape: tuple[int, ...]) -> bool:
  return len(shape) >= 2 and min(shape[-2:]) > 1


def _rms(x: Tensor) -> Tensor:
  return tf.sqrt(tf.reduce_mean(tf.square(x)))
