"""What TensorFlow itself says of a layer: operations counted, bytes kept, gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.layers.run_layer import start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.base import Layer, tracing
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

_MATMULS = ("MatMul", "BatchMatMul", "Conv2D", "DepthwiseConv2dNative")
Specs = Sequence[ArraySpec]


@dataclasses.dataclass
class Traced:
  """A layer's FProp as a concrete function of (weights, seeds, inputs, side).

  Attributes:
    layer: the layer.
    concrete: the function; gives (outputs, losses).
    arguments: values it can be called with.
  """

  layer: Layer
  concrete: Any
  arguments: tuple[Any, ...]


def trace(
  tf: Any,
  params: InstantiableParams,
  inputs: Specs,
  side: Mapping[str, ArraySpec] | None = None,
) -> Traced:
  """Traces a layer for training."""
  layer = params.Instantiate()
  arguments = (
    start_values(layer),
    {path: np.array([i, 7, 0], np.int64) for i, path in enumerate(layer.seeds(), 11)},
    [draw(spec, seed) for seed, spec in enumerate(inputs)],
    {name: draw(spec, 5) for name, spec in (side or {}).items()},
  )
  arguments = tf.nest.map_structure(tf.constant, arguments)

  def fprop(weights: Any, seeds: Any, inputs: Any, side: Any) -> Any:
    extra = [NestedMap(side)] if side else []
    with tracing(do_eval=False) as aux:
      outputs = layer.FProp(layer.Theta({**weights, **seeds}), *inputs, *extra)
    return outputs, aux.losses

  function = tf.function(fprop, autograph=False)
  return Traced(layer, function.get_concrete_function(*arguments), arguments)


def draw(spec: ArraySpec, seed: int) -> np.ndarray:
  """Draws normal floats, or integers below 4."""
  rng = np.random.default_rng(seed)
  if spec.dtype == "float32":
    return rng.normal(size=spec.shape).astype(np.float32)
  return rng.integers(0, 4, spec.shape).astype(spec.dtype)


def profiled_flops(tf: Any, traced: Traced) -> tuple[int, int]:
  """Counts float operations, and those of matrix products and convolutions."""
  profiler = tf.compat.v1.profiler
  options = profiler.ProfileOptionBuilder.float_operation()
  options["output"] = "none"
  by_type: dict[str, int] = {}
  node = profiler.profile(traced.concrete.graph, cmd="op", options=options)
  while node.children:
    (node,) = node.children
    by_type[node.name] = node.float_ops
  matmuls = sum(n for name, n in by_type.items() if name.startswith(_MATMULS))
  return sum(by_type.values()), matmuls


def kept_bytes(tf: Any, traced: Traced) -> int:
  """Adds up what the forward of a tape hands to the backward, arguments excepted."""
  weights, seeds, inputs, side = traced.arguments

  @tf.function(autograph=False)
  def step(weights: Any, inputs: Any) -> Any:
    with tf.GradientTape() as tape:
      tape.watch([weights, [x for x in inputs if x.dtype.is_floating]])
      outputs = traced.concrete(weights, seeds, inputs, side)
    outputs = [y for y in tf.nest.flatten(outputs) if y.dtype.is_floating]
    # A constant gradient keeps nothing.
    return tape.gradient(outputs, [weights, inputs])

  graph = step.get_concrete_function(weights, inputs).graph
  forward, backward = (
    op for op in graph.get_operations() if op.type.endswith("PartitionedCall")
  )
  kept = {id(x): x for x in backward.inputs if x.op is forward}
  return sum(x.shape.num_elements() * x.dtype.size for x in kept.values())


def loss_and_gradient(tf: Any, traced: Traced, arguments: Any) -> tuple[Any, Any]:
  """Gives a random linear function of all float outputs and its gradient.

  The gradient is that by trainable weights and float inputs: {name: array}.
  """
  weights, seeds, inputs, side = arguments
  trainable = [path for path, w in traced.layer.weights().items() if w.trainable]
  sources = {path: weights[path] for path in trainable}
  sources |= {f"input {i}": x for i, x in enumerate(inputs) if x.dtype.is_floating}
  with tf.GradientTape() as tape:
    tape.watch(sources)
    outputs = tf.nest.flatten(traced.concrete(weights, seeds, inputs, side))
    loss = 0.0
    for seed, y in enumerate(outputs):
      if y.dtype.is_floating:
        loss += tf.reduce_sum(y * draw(ArraySpec(tuple(y.shape)), 100 + seed))
  return loss, tape.gradient(loss, sources)
