"""The variables a learner keeps beside the weights.

They are known by the names of their checkpoint entries, and have none of their own: for
each name, TensorFlow makes a kernel, which takes longer than making the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.optimizers.gradients import HOST
from tfpipe.spelling import nearest

if TYPE_CHECKING:
  from tfpipe.optimizers.base import SlotSpec

STEP = "learner/step"
SKIPS = "learner/consecutive_skips"
CALLS = "learner/accumulated_calls"
WEIGHT = "learner/accumulated_weight"


def check_weights(
  weights: Mapping[str, tf.Variable], l2_names: Collection[str]
) -> None:
  """Refuses weights and names of weights that a learner can't work with.

  Raises:
    ValueError: no weights, another dtype than float32, an axis without size, one
      variable under two names, or an unknown name in `l2_names`.
  """
  if not weights:
    raise ValueError("no weights to train")
  owner: dict[int, str] = {}
  for name, weight in weights.items():
    if weight.dtype != tf.float32:
      raise ValueError(f"weight {name!r} is {weight.dtype.name}; it must be float32")
    if not weight.shape.is_fully_defined():
      raise ValueError(f"weight {name!r} has axes of unknown size: {weight.shape}")
    if id(weight) in owner:
      raise ValueError(
        f"weights {owner[id(weight)]!r} and {name!r} are one variable; give it once"
      )
    owner[id(weight)] = name
  for name in l2_names:
    if name not in weights:
      raise ValueError(f"l2_names has no such weight: {name!r}{nearest(name, weights)}")


def create_variable(
  spec: SlotSpec, weight: tf.Variable, *, summed: bool
) -> tf.Variable:
  """Creates a float32 state variable on the device of its weight.

  Args:
    spec: shape and initial value.
    weight: the variable it belongs to.
    summed: whether replicas hold parts of a sum, rather than equal copies.
  """

  def initial_value() -> tf.Tensor:
    if spec.initial is None:
      return tf.identity(weight)
    return tf.fill(spec.shape, spec.initial)

  with tf.device(weight.device):
    return _variable(initial_value, summed=summed)


def create_counters(*, accumulates: bool) -> dict[str, tf.Variable]:
  """Creates the counters of a learner, scalars on the host."""
  with tf.device(HOST):
    counters = {
      STEP: _variable(lambda: tf.zeros([], tf.int64)),
      SKIPS: _variable(lambda: tf.zeros([], tf.int64)),
    }
    if accumulates:
      counters[CALLS] = _variable(lambda: tf.zeros([], tf.int64))
      counters[WEIGHT] = _variable(lambda: tf.zeros([]), summed=True)
  return counters


def static_shape(weight: tf.Variable) -> tuple[int, ...]:
  """Returns the shape of a variable whose axes all have a size."""
  return tuple(size for size in weight.shape if size is not None)


def _variable(
  initial_value: Callable[[], tf.Tensor], *, summed: bool = False
) -> tf.Variable:
  if not summed:
    return tf.Variable(initial_value, trainable=False)
  # Read across replicas, saved and restored as the sum of the parts.
  return tf.Variable(
    initial_value,
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.SUM,
  )
