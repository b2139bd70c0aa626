"""The same training without a pipeline: one tape over the whole batch, and NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.pipeline import harness
from tests.pipeline.networks import Network
from tfpipe.layers.base import Layer, tracing
from tfpipe.layers.weight_init import name_key
from tfpipe.nested_map import NestedMap

Arrays = dict[str, np.ndarray]


class Reference:
  """Layers one after the other on all examples at once, outside of any tf.function."""

  def __init__(self, tf, network: Network) -> None:
    self._tf = tf
    self._fields = network.fields
    self.layers = [p.Instantiate() for p in network.layers()]
    self.declared = {
      f"{layer.name}/{path}": weight
      for layer in self.layers
      for path, weight in layer.weights().items()
      if not weight.tied_to
    }
    self.weights: Arrays = {
      name: weight.init.values(name, weight.shape, harness.SEED).numpy()
      for name, weight in self.declared.items()
    }
    self.trainable = [n for n, weight in self.declared.items() if weight.trainable]

  def metrics(self, batch: Mapping[str, np.ndarray], step: int = 0, *, do_eval=False):
    """Gives the metrics, as arrays."""
    with tracing(do_eval=do_eval):
      found = self._compose(self._tensors(), batch, step)
    return self._tf.nest.map_structure(lambda tensor: tensor.numpy(), dict(found))

  def gradients(
    self, batch: Mapping[str, np.ndarray], step: int
  ) -> tuple[Arrays, float, float]:
    """Gives the gradients of the sum of losses, that sum, and the loss weight."""
    tf, tensors = self._tf, self._tensors()
    sources = {name: tensors[name] for name in self.trainable}
    with tracing(do_eval=False) as aux, tf.GradientTape() as tape:
      tape.watch(sources)
      total, weight = self._compose(tensors, batch, step)["loss"]
      minimized = tf.add_n([total, *aux.losses])
    found = tape.gradient(minimized, sources)
    arrays = {n: tf.convert_to_tensor(g).numpy() for n, g in found.items()}
    return arrays, float(minimized), float(weight)

  def _tensors(self) -> dict:
    return {name: self._tf.constant(value) for name, value in self.weights.items()}

  def _compose(self, tensors, batch: Mapping[str, np.ndarray], step: int):
    tf = self._tf
    first = tuple(tf.constant(batch[name]) for name in self._fields)
    nest = first if len(first) > 1 else first[0]
    for layer in self.layers:
      inputs = nest if isinstance(nest, tuple) else (nest,)
      side = NestedMap({name: tf.constant(batch[name]) for name in layer.SIDE_INPUTS})
      theta = layer.Theta(self._values(layer, tensors, step))
      nest = layer.FProp(theta, *inputs, *([side] if layer.SIDE_INPUTS else []))
    return nest

  def _values(self, layer: Layer, tensors, step: int) -> dict:
    values = {
      path: tensors[weight.tied_to or f"{layer.name}/{path}"]
      for path, weight in layer.weights().items()
    }
    for path in layer.seeds():
      key = name_key(f"{harness.SEED}/{layer.name}/{path}")
      values[path] = self._tf.constant([key, step, 0], self._tf.int64)
    return values


def train(
  tf, network: Network, batches: Sequence[Mapping[str, np.ndarray]]
) -> tuple[Arrays, list[float]]:
  """Momentum, L2, clipping and averages as of `harness.make_learner`, in float64.

  Returns:
    weights, `slots/<name>/momentum` and `ema/<name>`; and the loss of each step.
  """
  reference = Reference(tf, network)
  names = reference.trainable
  velocity = {name: np.zeros(reference.weights[name].shape) for name in names}
  average = {name: reference.weights[name].astype(np.float64) for name in names}
  losses = []
  for step, batch in enumerate(batches):
    sums, loss, weight = reference.gradients(batch, step)
    losses.append(loss / weight)
    gradients = mean_gradients(reference, sums, weight)
    factor = min(1.0, harness.CLIP_NORM / global_norm(gradients))
    for name, gradient in gradients.items():
      velocity[name] = harness.MOMENTUM * velocity[name] + factor * gradient
      new = reference.weights[name] - harness.LEARNING_RATE * velocity[name]
      reference.weights[name] = new.astype(np.float32)
      average[name] += (1 - harness.EMA_DECAY) * (new - average[name])
  state = dict(reference.weights)
  state |= {f"slots/{name}/momentum": value for name, value in velocity.items()}
  state |= {f"ema/{name}": value for name, value in average.items()}
  return state, losses


def mean_gradients(reference: Reference, sums: Arrays, weight: float) -> Arrays:
  """Divides the sums by the loss weight and adds the gradient of the L2 term."""
  return {
    name: gradient.astype(np.float64) / weight
    + (harness.L2 * reference.weights[name] if reference.declared[name].l2 else 0.0)
    for name, gradient in sums.items()
  }


def global_norm(gradients: Arrays) -> float:
  """Gives the root of the sum of squares over all arrays."""
  return float(np.sqrt(sum(np.square(g).sum() for g in gradients.values())))
