"""Training as it is defined: one layer, one micro-batch after the other, with a tape.

It shares nothing with the pipelines but the layers, and is what these are checked by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfpipe.layers.base import Layer, tracing
from tfpipe.layers.weight_init import name_key
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sums:
  """What a mini-batch gives.

  Attributes:
    losses: the sum of the loss of each micro-batch.
    weight: the total weight of the loss.
    gradients: of the sum of the losses, by name of the weight.
  """

  losses: list[float]
  weight: float
  gradients: dict[str, np.ndarray]


def run(
  layers: Sequence[Layer],
  input_fields: Sequence[str],
  weights: Arrays,
  batch: Arrays,
  num_micro_batches: int,
  *,
  seed: int,
  step: int = 0,
) -> Sums:
  """Computes the losses and gradients of a mini-batch.

  Args:
    layers: of the network, which compute in float32.
    input_fields: fields that enter the first.
    weights: values by global name.
    batch: fields of the mini-batch.
    num_micro_batches: into how many it is cut: norms of batches see one at a time.
    seed: of random numbers.
    step: likewise.
  """
  tensors = {name: tf.constant(value) for name, value in weights.items()}
  trainable = {
    f"{layer.name}/{path}"
    for layer in layers
    for path, weight in layer.weights().items()
    if weight.trainable and not weight.tied_to
  }
  cut = {name: np.split(field, num_micro_batches) for name, field in batch.items()}
  losses, weight, gradients = [], 0.0, {}
  for m in range(num_micro_batches):
    fields = {name: tf.constant(parts[m]) for name, parts in cut.items()}
    rows = len(next(iter(cut.values()))[m])
    row = tf.constant(m * rows, tf.int64)
    # Not as a graph, in which TensorFlow would put operations in another order.
    loss, own, found = _micro_batch(
      layers, input_fields, tensors, sorted(trainable), fields, (seed, step, row)
    )
    losses.append(float(loss))
    weight += float(own)
    for name, value in found.items():
      gradients[name] = gradients.get(name, 0) + value.numpy()
  return Sums(losses, weight, gradients)


def _micro_batch(
  layers: Sequence[Layer],
  input_fields: Sequence[str],
  weights: Mapping[str, tf.Tensor],
  trainable: Sequence[str],
  fields: Mapping[str, tf.Tensor],
  place: tuple[int, int, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
  """Gives loss, weight and gradients of one micro-batch."""
  sources = {name: weights[name] for name in trainable}
  with tracing(do_eval=False) as aux, tf.GradientTape() as tape:
    tape.watch(sources)
    nest: Any = tuple(fields[name] for name in input_fields)
    for layer in layers:
      args = nest if isinstance(nest, tuple) else (nest,)
      if layer.SIDE_INPUTS:
        side = {name: fields[name] for name in layer.SIDE_INPUTS}
        args = (*args, NestedMap(side))
      nest = layer.FProp(layer.Theta(_values(layer, weights, place)), *args)
      # The next layer hands out moments of the same paths.
      aux.moments.clear()
    total, weight = nest["loss"]
    loss = tf.add_n([total, *aux.losses])
  found = tape.gradient(loss, sources)
  dense = {n: tf.convert_to_tensor(gradient) for n, gradient in found.items()}
  return loss, weight, dense


def _values(
  layer: Layer,
  weights: Mapping[str, tf.Tensor],
  place: tuple[int, int, tf.Tensor],
) -> dict[str, tf.Tensor]:
  """Gives weights and seeds of a layer by path."""
  seed, step, row = place
  values = {
    path: weights[weight.tied_to or f"{layer.name}/{path}"]
    for path, weight in layer.weights().items()
  }
  for path in layer.seeds():
    key = name_key(f"{seed}/{layer.name}/{path}")
    values[path] = tf.concat([tf.constant([key, step], tf.int64), row[None]], axis=0)
  return values
