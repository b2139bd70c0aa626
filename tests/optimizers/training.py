"""What the tests of the learner share: a learner with its weights and its step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpipe.optimizers import Learner


class Training:
  """A learner, its weights, and `apply` in a `tf.function`."""

  def __init__(
    self,
    tf: Any,
    values: Mapping[str, Any],
    l2_names: tuple[str, ...] = (),
    devices: Mapping[str, str] | None = None,
    *,
    packed: bool = False,
    **settings: Any,
  ) -> None:
    self._tf = tf
    self.learner = Learner.Params().Set(**settings).Instantiate()
    self.weights = {}
    for name, value in values.items():
      with tf.device(devices[name] if devices else None):
        self.weights[name] = tf.Variable(np.asarray(value, np.float32))
    self.learner.create_state(self.weights, l2_names)
    self.function = tf.function(
      lambda sums, weight: self.learner.apply(sums, weight, packed=packed),
      autograph=False,
    )

  def step(self, sums: Mapping[str, Any], weight: float = 1.0) -> dict[str, np.ndarray]:
    """Applies gradient sums, arrays or IndexedSlices; returns the metrics as arrays."""
    tf = self._tf
    tensors = {
      name: value
      if isinstance(value, tf.IndexedSlices)
      else tf.constant(value, tf.float32)
      for name, value in sums.items()
    }
    metrics = self.function(tensors, tf.constant(weight, tf.float32))
    return {name: value.numpy() for name, value in metrics.items()}

  def variables(self) -> dict[str, Any]:
    """Gives all variables: the weights and the learner's state."""
    return self.weights | self.learner.state()

  def values(self) -> dict[str, np.ndarray]:
    """Gives copies of the values of all variables."""
    return {name: variable.numpy() for name, variable in self.variables().items()}


def assert_same_bits(
  actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
  """Asserts equal names, and equal bytes for each."""
  assert actual.keys() == expected.keys()
  for name, value in actual.items():
    assert np.asarray(value).tobytes() == np.asarray(expected[name]).tobytes(), name


def random_gradients(
  values: Mapping[str, Any], steps: int, seed: int = 0
) -> list[dict[str, np.ndarray]]:
  """Draws float32 normal numbers of the shapes of `values`, one dict a step."""
  rng = np.random.default_rng(seed)
  return [
    {
      name: rng.normal(size=np.shape(value)).astype(np.float32)
      for name, value in values.items()
    }
    for _ in range(steps)
  ]
