"""Runs a single layer on given inputs, as a cell would."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfpipe.layers.base import Layer, tracing
from tfpipe.params import InstantiableParams


@dataclasses.dataclass(frozen=True)
class Run:
  """Output of a layer, and gradients of `sum(output · dy)` by weight and by input."""

  output: Any
  weights: dict[str, Any]
  inputs: list[Any]


def start_values(layer: Layer, seed: int = 0) -> dict[str, Any]:
  """Draws the weights by their start rules; biases get values other than 0."""
  rng = np.random.default_rng(seed)
  values = {}
  for path, weight in layer.weights().items():
    value = weight.init.values(path, weight.shape, seed).numpy()
    if weight.init.method == "constant":
      value = value + rng.normal(size=weight.shape, scale=0.3)
    values[path] = value.astype(np.float32)
  return values


def call(
  tf: Any,
  params: InstantiableParams,
  values: Mapping[str, Any],
  *inputs: Any,
  do_eval: bool = False,
  example: int = 0,
) -> Any:
  """Gives FProp's output; `example` is the index of the first one, for dropout."""
  layer = params.Instantiate()
  seeds = {
    path: tf.constant([key, 7, example], tf.int64)
    for key, path in enumerate(layer.seeds(), 11)
  }
  with tracing(do_eval=do_eval):
    return layer.FProp(layer.Theta({**values, **seeds}), *inputs)


def gradients(
  tf: Any,
  params: InstantiableParams,
  values: Mapping[str, Any],
  inputs: Sequence[Any],
  dy: Any,
) -> Run:
  """Gives output and gradients of a layer with one output tensor."""
  weights = {path: tf.constant(value) for path, value in values.items()}
  inputs = [tf.constant(x) for x in inputs]
  with tf.GradientTape() as tape:
    tape.watch([weights, [x for x in inputs if x.dtype.is_floating]])
    output = call(tf, params, weights, *inputs)
    loss = tf.reduce_sum(output * dy)
  by_weight, by_input = tape.gradient(loss, [weights, inputs])
  return Run(output, by_weight, by_input)
