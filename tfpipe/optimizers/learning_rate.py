"""Learning-rate schedules: pure functions of the number of applied updates.

A schedule gives a multiplier of `Learner`'s learning rate. The same code computes it
for Python numbers and NumPy arrays in float64 (to print or draw a schedule without
TensorFlow) and for tensors in float32.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from tfpipe.checks import (
  check_bool,
  check_count,
  check_number,
  check_numbers,
  instantiate,
)
from tfpipe.lazy import tf
from tfpipe.params import InstantiableParams, Params


class LearningRateSchedule:
  """Base of the schedules."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings of this schedule."""
    return InstantiableParams(cls)

  def __init__(self, params: Params) -> None:
    self.params = params.Copy()

  def value(self, step: Any) -> Any:
    """Returns the multiplier for the next update.

    Args:
      step: number of updates applied so far, so 0 for the first: an int or float, a
        NumPy array, or a tensor of any shape.

    Returns:
      A float64 of NumPy, or a float32 tensor, of the shape of `step`.
    """
    if isinstance(step, (int, float, np.ndarray, np.generic)):
      return self._value(np, np.asarray(step, np.float64))
    return self._value(tf, tf.cast(step, tf.float32))

  def _value(self, xp: Any, step: Any) -> Any:
    """Computes the value with `xp`, NumPy or TensorFlow; names common to both only."""
    raise NotImplementedError


class Constant(LearningRateSchedule):
  """Always the same multiplier, `scale`."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("scale", 1.0, "The multiplier, at least 0.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._scale = check_number(self, params, "scale", "[0, inf)")

  def _value(self, xp: Any, step: Any) -> Any:
    return self._scale * xp.ones_like(step)


class LinearWarmup(LearningRateSchedule):
  """Rises from 0 as `step/warmup_steps`, then follows another schedule.

  That schedule counts from step 0: the warm-up isn't subtracted, as in the training of
  AmoebaNet, whose first update therefore has rate 0.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("warmup_steps", 1000, "Number of updates until the multiplier is 1.")
    p.Define("after", Constant.Params(), "Schedule from step warmup_steps on.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._warmup_steps = check_count(self, params, "warmup_steps", 1)
    self._after = instantiate(self, params, "after", LearningRateSchedule)

  def _value(self, xp: Any, step: Any) -> Any:
    rise = step / float(self._warmup_steps)
    return xp.where(step < self._warmup_steps, rise, self._after.value(step))


class Exponential(LearningRateSchedule):
  """`max(decay_rate^(step/decay_steps), floor)`, in stairs if wanted."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("decay_rate", 0.97, "Factor for each decay_steps updates, in (0, 1].")
    p.Define("decay_steps", 1000, "Number of updates, above 0; fractions are fine.")
    p.Define("staircase", False, "Whether to decay at multiples of decay_steps only.")
    p.Define("floor", 0.0, "Smallest multiplier, in [0, 1].")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._decay_rate = check_number(self, params, "decay_rate", "(0, 1]")
    self._decay_steps = check_number(self, params, "decay_steps", "(0, inf)")
    self._staircase = check_bool(self, params, "staircase")
    self._floor = check_number(self, params, "floor", "[0, 1]")

  def _value(self, xp: Any, step: Any) -> Any:
    exponent = step / self._decay_steps
    if self._staircase:
      exponent = xp.floor(exponent)
    return xp.maximum(self._decay_rate**exponent, self._floor)


class Cosine(LearningRateSchedule):
  """Half a cosine from 1 at step 0 to `floor` at `total_steps`, then constant.

  Source: Loshchilov and Hutter, arXiv:1608.03983, equation 5 without restarts.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("total_steps", 1000, "Number of updates until the floor.")
    p.Define("floor", 0.0, "Last multiplier, in [0, 1].")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._total_steps = check_count(self, params, "total_steps", 1)
    self._floor = check_number(self, params, "floor", "[0, 1]")

  def _value(self, xp: Any, step: Any) -> Any:
    done = xp.minimum(step / float(self._total_steps), 1.0)
    return self._floor + (1 - self._floor) * 0.5 * (1 + xp.cos(math.pi * done))


class PiecewiseConstant(LearningRateSchedule):
  """`values[i]` from step `boundaries[i-1]` up to, not including, `boundaries[i]`."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("boundaries", [], "Increasing steps at which the multiplier changes.")
    p.Define("values", [1.0], "Multipliers, one more than boundaries, each at least 0.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._boundaries = check_numbers(self, params, "boundaries", "(0, inf)")
    self._values = check_numbers(self, params, "values", "[0, inf)")
    if len(self._values) != len(self._boundaries) + 1:
      raise ValueError(
        f"PiecewiseConstant: {len(self._boundaries)} boundaries need "
        f"{len(self._boundaries) + 1} values, not {len(self._values)}"
      )
    if any(low >= high for low, high in pairwise(self._boundaries)):
      raise ValueError(
        f"PiecewiseConstant.boundaries = {params.boundaries}: they must increase"
      )

  def _value(self, xp: Any, step: Any) -> Any:
    value = self._values[0] * xp.ones_like(step)
    for boundary, later in zip(self._boundaries, self._values[1:], strict=True):
      value = xp.where(step < boundary, value, later)
    return value


class Transformer(LearningRateSchedule):
  """`model_dim^-0.5 · min(t^-0.5, t·warmup_steps^-1.5)` with t = step + 1.

  Source: Vaswani et al., arXiv:1706.03762, equation 3, whose steps count from 1.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = super().Params()
    p.Define("model_dim", 512, "Width of the model.")
    p.Define("warmup_steps", 4000, "Number of updates of linear growth.")
    return p

  def __init__(self, params: Params) -> None:
    super().__init__(params)
    self._model_dim = check_count(self, params, "model_dim", 1)
    self._warmup_steps = check_count(self, params, "warmup_steps", 1)

  def _value(self, xp: Any, step: Any) -> Any:
    t = step + 1.0
    growth = t * self._warmup_steps**-1.5
    return self._model_dim**-0.5 * xp.minimum(t**-0.5, growth)
