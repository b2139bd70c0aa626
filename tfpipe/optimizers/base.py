"""What every optimizer is: Params, the sizes of its slots, and a pure update rule.

An optimizer owns no variable and knows no device. `Learner` keeps the slots, and may
hand the same rule any tensors: those of a test, of a replica, of an older version.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  import tensorflow as tf

  Tensor = tf.Tensor
  Slots = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class SlotSpec:
  """Shape and initial value of a float32 state variable that belongs to a weight.

  Attributes:
    shape: sizes of its axes.
    initial: the number it is filled with; None stands for a copy of the weight.
  """

  shape: tuple[int, ...]
  initial: float | None = 0.0

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    """Memory of its elements."""
    return 4 * self.size


class Optimizer:
  """Base of the update rules.

  A subclass defines its Params, checks them in `__init__` without TensorFlow, and
  gives `slot_specs` and `update`. All arithmetic is float32.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings of this optimizer."""
    return InstantiableParams(cls)

  def __init__(self, params: Params) -> None:
    self.params = params.Copy()

  def slot_specs(self, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns the slots of a weight of the given shape by name, without TensorFlow."""
    raise NotImplementedError

  def update(
    self, weight: Tensor, grad: Tensor, slots: Slots, rate: Tensor, step: Tensor
  ) -> tuple[Tensor, Slots]:
    """Computes one update of one weight; a pure function of its arguments.

    Args:
      weight: value before the update, float32, any shape.
      grad: gradient of the loss, same shape.
      slots: values of the slots named by `slot_specs`.
      rate: the learning rate, float32 scalar.
      step: float32 scalar, the number of this update counted from 1.

    Returns:
      The new weight and the new slots, with the shapes of the old ones.
    """
    raise NotImplementedError
