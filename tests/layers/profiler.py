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
# These share the memory of their input.
_ALIASES = ("Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient")
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
  """Adds up what the forward of a tape hands to the backward, arguments excepted.

  Counted is what the backward really uses, as after Grappler's pruning: TensorFlow's
  tape hands over much that serves gradients that nobody asks for.
  """
  weights, seeds, inputs, side = traced.arguments
  trainable = [p for p, weight in traced.layer.weights().items() if weight.trainable]

  @tf.function(autograph=False)
  def step(weights: Any, inputs: Any) -> Any:
    sources = [weights[path] for path in trainable]
    sources += [x for x in inputs if x.dtype.is_floating]
    with tf.GradientTape() as tape:
      tape.watch(sources)
      outputs, losses = traced.concrete(weights, seeds, inputs, side)
    outputs = tf.nest.flatten([outputs, losses])
    return tape.gradient([y for y in outputs if y.dtype.is_floating], sources)

  graph = step.get_concrete_function(weights, inputs).graph
  calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
  if not calls:
    return 0
  forward, backward = calls
  library = {f.signature.name: f for f in graph.as_graph_def().library.function}
  made = _origins(library[forward.get_attr("f").name])
  results = {y.op.inputs[0].value_index for y in graph.outputs if y.op.inputs}
  used = _used(library[backward.get_attr("f").name], results)
  kept = {
    made[x.value_index]: x
    for i, x in enumerate(backward.inputs)
    if x.op is forward and i in used
  }
  sizes = {
    # Of unknown shape is only what cuDNN reserves, empty on CPU.
    origin: (x.shape.num_elements() or 0) * x.dtype.size
    for origin, x in kept.items()
  }
  return sum(size for origin, size in sizes.items() if origin)


def _origins(function: Any) -> list[str]:
  """Names what made each output of a function; '' for arguments and constants."""
  nodes = {node.name: node for node in function.node_def}

  def origin(source: str) -> str:
    name, _, index = source.partition(":")
    if not index or nodes[name].op == "Const":
      return ""
    if nodes[name].op in _ALIASES:
      return origin(nodes[name].input[int(index.split(":")[-1])])
    return source

  return [origin(function.ret[arg.name]) for arg in function.signature.output_arg]


def _used(function: Any, results: set[int]) -> set[int]:
  """Gives the indices of the arguments on which some results of a function depend."""
  nodes = {node.name: node for node in function.node_def}
  outputs = [arg.name for arg in function.signature.output_arg]
  todo, seen = [function.ret[outputs[i]] for i in results], set()
  while todo:
    name = todo.pop().partition(":")[0]
    if name not in seen:
      seen.add(name)
      todo += nodes[name].input if name in nodes else []
  return {i for i, arg in enumerate(function.signature.input_arg) if arg.name in seen}


def derivatives(tf: Any, traced: Traced, step: float) -> tuple[float, float, float]:
  """Gives the derivative of a random function of the outputs in a random direction.

  Returns:
    That by the tape, along trainable weights and float inputs, that by the central
    difference of `step`, and the norm of the gradient: the scale of both.
  """
  weights, seeds, inputs, side = traced.arguments
  trainable = [p for p, weight in traced.layer.weights().items() if weight.trainable]
  floats = [i for i, x in enumerate(inputs) if x.dtype.is_floating]
  points = [weights[path] for path in trainable] + [inputs[i] for i in floats]
  directions = [_draw_like(x, seed) for seed, x in enumerate(points, 50)]

  def function(points: Sequence[Any]) -> Any:
    values = {**weights, **dict(zip(trainable, points, strict=False))}
    moved = dict(zip(floats, points[len(trainable) :], strict=True))
    arguments = [moved.get(i, x) for i, x in enumerate(inputs)]
    outputs = tf.nest.flatten(traced.concrete(values, seeds, arguments, side))
    parts = [y for y in outputs if y.dtype.is_floating]
    factors = [_draw_like(y, seed) for seed, y in enumerate(parts, 100)]
    return tf.add_n([tf.reduce_sum(y * f) for y, f in zip(parts, factors, strict=True)])

  with tf.GradientTape() as tape:
    tape.watch(points)
    value = function(points)
  found = tape.gradient(value, points, unconnected_gradients="zero")
  found = [tf.convert_to_tensor(g) for g in found]
  exact = sum(
    float(tf.reduce_sum(g * d)) for g, d in zip(found, directions, strict=True)
  )
  ahead, behind = (
    function([x + sign * d for x, d in zip(points, directions, strict=True)])
    for sign in (step, -step)
  )
  return exact, float(ahead - behind) / (2 * step), float(tf.linalg.global_norm(found))


def _draw_like(x: Any, seed: int) -> np.ndarray:
  return draw(ArraySpec(tuple(x.shape)), seed)
