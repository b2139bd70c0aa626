"""A layer as a traced function, shared by all layers that are equal to it.

`LayerFunction` is a function of (theta, seeds, inputs, side). It is traced once for a
kind of layer and a shape of inputs, whatever the number of such layers, of stages and
of micro-batches. A cell chains the functions of its layers.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfpipe.layers.base import Aux, Layer, tracing
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline import mixed_precision
from tfpipe.pipeline.call import Call, Execution
from tfpipe.pipeline.checks import check_pure, check_undecided
from tfpipe.pipeline.gradient import GradientKey, LayerGradient
from tfpipe.pipeline.subgraph import GraphCutter
from tfpipe.structure import Structure


class LayerFunction:
  """The traced function of a layer for one shape of inputs.

  Args:
    layer: the first of the equal layers.
    inputs: nest of TensorSpecs that enters it.
    side: specs of the batch fields that it reads.
    do_eval: trace for evaluation.
    execution: how its functions are run.

  Attributes:
    args: theta, seeds, inputs and side inputs, flat, in the traced graph.
    outputs: tensors, then losses that the layer adds, then moments.
    num_tensors: how many of them are tensors, and
    num_losses: losses.
    moments: path of the norm and decay of each pair of moments.
    out_specs: nest of what the layer returns: the inputs of the next one.
  """

  def __init__(
    self,
    layer: Layer,
    inputs: Any,
    side: Mapping[str, tf.TensorSpec],
    *,
    do_eval: bool,
    execution: Execution,
  ) -> None:
    self.layer = layer
    self.num_traces = 0
    self.execution = execution
    self._do_eval = do_eval
    self._in, specs = Structure.split(inputs)
    self._out: Structure
    self.moments: list[tuple[str, float]] = []
    self.num_losses = 0
    weights = [tf.TensorSpec(w.shape, tf.float32) for w in layer.weights().values()]
    self.num_weights, self.num_inputs = len(weights), len(specs)
    self.num_seeds = len(layer.seeds())
    with tf.device(None):
      concrete = tf.function(self._body, autograph=False).get_concrete_function(
        weights, tf.TensorSpec([self.num_seeds, 3], tf.int64), specs, dict(side)
      )
    check_pure(concrete.graph, layer)
    check_undecided(concrete.graph, layer)
    count = len(concrete.inputs) - len(concrete.captured_inputs)
    self.args = list(concrete.inputs[:count])
    self.outputs = list(concrete.outputs)
    self.cutter = GraphCutter(concrete.graph)
    self.num_tensors = len(self.outputs) - self.num_losses - 2 * len(self.moments)
    self.out_specs = self._out.pack(
      [tf.TensorSpec(t.shape, t.dtype) for t in self.outputs[: self.num_tensors]]
    )
    self._gradients: dict[GradientKey, LayerGradient] = {}

  @property
  def loss_scale(self) -> tf.Tensor | None:
    """What losses are differentiated times, of the arguments; None for once."""
    names = list(self.layer.weights())
    if mixed_precision.LOSS_SCALE not in names:
      return None
    return self.args[names.index(mixed_precision.LOSS_SCALE)]

  @functools.cached_property
  def forward(self) -> Call:
    """What gives the outputs."""
    return Call(self.cutter, self.args, self.outputs, execution=self.execution)

  def gradient(self, key: GradientKey) -> LayerGradient:
    """Gives the functions that compute a gradient; traced once for each key."""
    if key not in self._gradients:
      self._gradients[key] = LayerGradient(self, key)
    return self._gradients[key]

  def loss_place(self) -> int:
    """Gives the place of the loss's sum among the outputs of a last layer."""
    places = self._out.pack(range(self.num_tensors))
    return places["loss"][0]

  def pack(self, tensors: Sequence[Any]) -> Any:
    """Puts the layer's tensors, or what stands for them, into what it returns."""
    return self._out.pack(tensors)

  def _body(
    self,
    theta: list[tf.Tensor],
    seeds: tf.Tensor,
    inputs: list[tf.Tensor],
    side: dict[str, tf.Tensor],
  ) -> list[tf.Tensor]:
    self.num_traces += 1
    layer = self.layer
    weights = dict(zip(layer.weights(), theta, strict=True))
    values = mixed_precision.theta(layer, weights)
    values |= zip(layer.seeds(), tf.unstack(seeds), strict=True)
    nest = self._in.pack(mixed_precision.border(layer, inputs))
    args = nest if isinstance(nest, tuple) else (nest,)
    if layer.SIDE_INPUTS:
      args = (*args, NestedMap({name: side[name] for name in layer.SIDE_INPUTS}))
    with mixed_precision.naming(layer):
      with tracing(do_eval=self._do_eval) as aux, _nameless(layer):
        outputs = layer.FProp(layer.Theta(values), *args)
      self._out, tensors = Structure.split(outputs)
      tensors = mixed_precision.border(layer, tensors)
      _check_handed_out(aux)
    self.moments = [(path, m.decay) for path, m in aux.moments.items()]
    self.num_losses = len(aux.losses)
    pairs = [t for m in aux.moments.values() for t in (m.mean, m.variance)]
    return [*tensors, *aux.losses, *map(tf.stop_gradient, pairs)]


def signature(layer: Layer) -> object:
  """Gives a key that is equal for layers that differ in their names only."""
  cls = type(layer)
  try:
    text = layer.params.Copy().Set(name="").ToText()
    state = pickle.dumps([own.state() for own in _tree(layer)])
  except (pickle.PicklingError, AttributeError, RecursionError, TypeError, ValueError):
    return object()  # nobody knows whether another one's is equal
  return f"{cls.__module__}.{cls.__qualname__}", text, state


def _tree(layer: Layer) -> Iterator[Layer]:
  yield layer
  for child in layer.children():
    yield from _tree(child)


def _check_handed_out(aux: Aux) -> None:
  """Refuses what was handed out within a branch, a loop or another function."""
  moments = [t for m in aux.moments.values() for t in (m.mean, m.variance)]
  for name, tensors in (("AddLoss", aux.losses), ("AddMoments", moments)):
    for tensor in tensors:
      if tensor.graph is not tf.compat.v1.get_default_graph():
        raise ValueError(
          f"{name} within a branch, a loop or another function: return the tensor from "
          "there, and hand it out in FProp itself"
        )


@contextlib.contextmanager
def _nameless(layer: Layer) -> Iterator[None]:
  """Takes a layer's name away: layers that share a trace differ in it.

  Which layers share one depends on the network, and a layer's values may not.
  """
  params = layer.params
  layer.params = params.Copy()
  layer.params.Delete("name")
  try:
    yield
  finally:
    layer.params = params
