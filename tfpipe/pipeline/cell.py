"""A cell: consecutive layers as one traced function.

`CellFunction` is what equal cells share: a function of (theta, seeds, inputs, side),
traced once, called for every micro-batch. `Cell` binds it to the names of its weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tfpipe.layers.base import Aux, Layer, tracing
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline.checks import check_pure
from tfpipe.pipeline.gradient import CellGradient, GradientKey, Part
from tfpipe.pipeline.remat import rematerialize
from tfpipe.pipeline.subgraph import GraphCutter
from tfpipe.structure import Structure


@dataclasses.dataclass(frozen=True)
class CellOutputs:
  """What one call of a cell gives.

  Attributes:
    tensors: the tensors of the border, flat.
    moments: batch moments (mean, variance, mean, variance, ...), flat.
    losses: losses of this cell to be minimized, sums over the micro-batch's examples.
  """

  tensors: list[tf.Tensor]
  moments: list[tf.Tensor]
  losses: list[tf.Tensor]


class CellFunction:
  """The traced function of a sequence of layers for one shape of inputs."""

  def __init__(
    self,
    layers: Sequence[Layer],
    inputs: Any,
    side: Mapping[str, tf.TensorSpec],
    *,
    do_eval: bool,
    remat_layers: bool,
    xla: bool = False,
    serial: bool = False,
  ) -> None:
    self.layers = layers
    self.num_traces = 0
    self.xla = xla
    self._do_eval = do_eval
    self._remat_layers = remat_layers
    self._in, specs = Structure.split(inputs)
    self.out: Structure
    # (index of the layer in the cell, path of the norm, decay) of each moment pair.
    self.moments: list[tuple[int, str, float]] = []
    # What enters the layers behind the first.
    self.entries: list[tf.Tensor] = []
    self.num_losses = 0
    weights = [
      tf.TensorSpec(weight.shape, tf.float32)
      for layer in layers
      for weight in layer.weights().values()
    ]
    self._num_weights, self._num_inputs = len(weights), len(specs)
    num_seeds = sum(len(layer.seeds()) for layer in layers)
    self.concrete = tf.function(self._body, autograph=False).get_concrete_function(
      weights, tf.TensorSpec([num_seeds, 3], tf.int64), specs, dict(side)
    )
    check_pure(self.concrete.graph, layers)
    count = len(self.concrete.inputs) - len(self.concrete.captured_inputs)
    self.args = list(self.concrete.inputs[:count])
    self.cutter = GraphCutter(self.concrete.graph, xla=xla, serial=serial)
    # The outputs' specs, with the constants in place: the inputs of the next cell.
    self.num_outputs = len(self.concrete.outputs)
    count = self.num_outputs - 2 * len(self.moments) - self.num_losses
    self.num_tensors = count
    self.out_specs = self.out.pack(
      [tf.TensorSpec(t.shape, t.dtype) for t in self.concrete.outputs[:count]]
    )
    self._gradients: dict[GradientKey, CellGradient] = {}

  @functools.cached_property
  def forward(self) -> Part:
    """What gives the outputs."""
    return Part(self.cutter, self.args, list(self.concrete.outputs))

  def split_args(
    self, args: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Gives theta and the inputs out of a flat list of arguments."""
    first = self._num_weights + 1
    return list(args[: self._num_weights]), list(args[first : first + self._num_inputs])

  def outputs(self, flat: Sequence[tf.Tensor]) -> CellOutputs:
    """Takes the outputs apart."""
    first = self.num_outputs - self.num_losses
    return CellOutputs(
      list(flat[: self.num_tensors]),
      list(flat[self.num_tensors : first]),
      list(flat[first : self.num_outputs]),
    )

  def loss_place(self) -> int:
    """Gives the place of the loss's sum among the outputs of a last cell."""
    places = self.out.pack(range(self.num_tensors))
    return places["loss"][0]

  def gradient(self, key: GradientKey) -> CellGradient:
    """Gives the functions that compute a gradient; traced once for each key."""
    if key not in self._gradients:
      self._gradients[key] = CellGradient(self, key)
    return self._gradients[key]

  def _body(
    self,
    theta: list[tf.Tensor],
    seeds: tf.Tensor,
    inputs: list[tf.Tensor],
    side: dict[str, tf.Tensor],
  ) -> list[tf.Tensor]:
    self.num_traces += 1
    nest = self._in.pack(inputs)
    moments: list[tf.Tensor] = []
    losses: list[tf.Tensor] = []
    self.moments, self.entries = [], []
    weights, seed_rows = iter(theta), iter(tf.unstack(seeds))
    for index, layer in enumerate(self.layers):
      values = {path: next(weights) for path in layer.weights()}
      values |= {path: next(seed_rows) for path in layer.seeds()}
      call = _LayerCall(layer, nest, side, values, self._do_eval)
      nest = call.run(remat=self._remat_layers)
      self.entries += call.entries if index else []
      moments += call.moments
      losses += call.losses
      self.moments += [(index, path, decay) for path, decay in call.moment_names]
    self.out, tensors = Structure.split(nest)
    self.num_losses = len(losses)
    return [*tensors, *moments, *losses]


class _LayerCall:
  """One layer's FProp inside the body of a cell."""

  def __init__(
    self,
    layer: Layer,
    nest: Any,
    side: Mapping[str, tf.Tensor],
    values: Mapping[str, tf.Tensor],
    do_eval: bool,
  ) -> None:
    self._layer, self._do_eval = layer, do_eval
    self._structure, self._inputs = Structure.split(nest)
    self._paths = list(values)
    self._values = [values[path] for path in self._paths]
    self._side = NestedMap({name: side[name] for name in layer.SIDE_INPUTS})
    self.entries: list[tf.Tensor] = []
    self.moments: list[tf.Tensor] = []
    self.moment_names: list[tuple[str, float]] = []
    self.losses: list[tf.Tensor] = []
    self._out: Structure

  def run(self, *, remat: bool) -> Any:
    with tf.name_scope(self._layer.name or type(self._layer).__name__):
      self.entries = inputs = _sealed(self._inputs)
      if remat and not self._do_eval:
        flat = list(rematerialize(self._flat, self._values, inputs))
      else:
        flat = self._flat([*self._values, *inputs])
      first = len(flat) - 2 * len(self.moment_names)
      self.moments = flat[first:]
      flat = _sealed(flat[:first])
    count = len(flat) - self._num_losses
    self.losses = flat[count:]
    return self._out.pack(flat[:count])

  def _flat(self, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    theta = self._layer.Theta(dict(zip(self._paths, args, strict=False)))
    nest = self._structure.pack(args[len(self._paths) :])
    inputs = nest if isinstance(nest, tuple) else (nest,)
    side = (self._side,) if self._layer.SIDE_INPUTS else ()
    try:
      with tracing(do_eval=self._do_eval) as aux, _nameless(self._layer):
        outputs = self._layer.FProp(theta, *inputs, *side)
      self._out, tensors = Structure.split(outputs)
      _check_handed_out(aux)
    except Exception as error:
      error.add_note(f"in layer {self._layer.name!r}")
      raise
    self.moment_names = [(path, m.decay) for path, m in aux.moments.items()]
    self._num_losses = len(aux.losses)
    pairs = [t for m in aux.moments.values() for t in (m.mean, m.variance)]
    return [*tensors, *aux.losses, *[tf.stop_gradient(moment) for moment in pairs]]


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

  Which layers share one depends on the cut, and nothing of the result may.
  """
  params = layer.params
  layer.params = params.Copy()
  layer.params.Delete("name")
  try:
    yield
  finally:
    layer.params = params


def _sealed(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Passes all tensors that enter or leave a layer through one op.

  Its gradient waits for all of them, so a layer's gradients are summed within the layer
  and in one order, whatever lies before and behind: in its cell or in another.
  """
  return list(tf.identity_n(tensors)) if tensors else []


@dataclasses.dataclass(frozen=True)
class Cell:
  """A stage of the pipeline.

  Attributes:
    layers: its layers, with their own names.
    function: the traced function, shared with equal cells.
    side: names of the batch fields that it reads besides its input.
  """

  layers: Sequence[Layer]
  function: CellFunction
  side: tuple[str, ...]

  def weight_names(self) -> list[str]:
    """Global names of the weights, in the order of the function's theta."""
    return [
      weight.tied_to or f"{layer.name}/{path}"
      for layer in self.layers
      for path, weight in layer.weights().items()
    ]

  def seed_names(self) -> list[str]:
    """Global names of the seeds, in the order of the function's seeds."""
    return [f"{layer.name}/{p}" for layer in self.layers for p in layer.seeds()]

  def moment_names(self) -> list[tuple[str, float]]:
    """Global name and decay of each pair of moments, in the order of the outputs."""
    return [
      (f"{self.layers[i].name}/{path}" if path else self.layers[i].name, decay)
      for i, path, decay in self.function.moments
    ]


def flat_args(
  theta: Sequence[tf.Tensor],
  seeds: tf.Tensor,
  inputs: Sequence[tf.Tensor],
  side: Mapping[str, tf.Tensor],
) -> list[tf.Tensor]:
  """Lists the arguments of a cell's functions in their order."""
  return [*theta, seeds, *inputs, *[side[name] for name in sorted(side)]]


def make_gradients(
  cells: Sequence[Cell], trainable: Collection[str]
) -> list[CellGradient]:
  """Traces the gradients of consecutive cells, equal ones once, from last to first.

  Args:
    cells: of a whole network; the last one gives metrics with `loss` among them.
    trainable: global names of the weights that learn.
  """
  gradients: list[CellGradient] = []
  for stage, cell in reversed(list(enumerate(cells))):
    function = cell.function
    last = not gradients
    theta = [i for i, name in enumerate(cell.weight_names()) if name in trainable]
    key = GradientKey(
      dys=(False,) * function.num_tensors if last else gradients[-1].dxs,
      inputs=stage > 0,
      theta=tuple(theta),
      loss=function.loss_place() if last else -1,
    )
    gradients.append(function.gradient(key))
  return gradients[::-1]


def make_cells(
  layers: Sequence[Layer],
  ranges: Sequence[tuple[int, int]],
  inputs: Any,
  batch: Mapping[str, tf.TensorSpec],
  *,
  do_eval: bool = False,
  remat_layers: bool = False,
  xla: bool = False,
  serial: bool = False,
) -> list[Cell]:
  """Traces the cells of a partition, equal ones once.

  Args:
    layers: all layers, in order.
    ranges: half-open layer range of each cell.
    inputs: nest of TensorSpecs that enters the first cell.
    batch: specs of one micro-batch's fields, from which layers take side inputs.
    do_eval: trace for evaluation.
    remat_layers: keep only the layers' inputs for the backward pass.
    xla: compile each cell's functions with XLA.
    serial: run the ops of a cell one after the other.
  """
  traced: dict[Any, CellFunction] = {}
  cells = []
  for start, end in ranges:
    part = layers[start:end]
    side = tuple(dict.fromkeys(n for layer in part for n in layer.SIDE_INPUTS))
    structure, specs = Structure.split(inputs)
    key = (tuple(_signature(layer) for layer in part), structure.key(), repr(specs))
    if key not in traced:
      traced[key] = CellFunction(
        part,
        inputs,
        {name: batch[name] for name in side},
        do_eval=do_eval,
        remat_layers=remat_layers,
        xla=xla,
        serial=serial,
      )
    cells.append(Cell(part, traced[key], side))
    inputs = traced[key].out_specs
  return cells


def _signature(layer: Layer) -> object:
  """Gives a key that is equal for layers that differ in their names only."""
  params = layer.params.Copy().Set(name="")
  try:
    state = pickle.dumps([own.state() for own in _tree(layer)])
  except (pickle.PicklingError, AttributeError, TypeError):
    return object()  # nobody knows whether another one's is equal
  cls = type(layer)
  return f"{cls.__module__}.{cls.__qualname__}", params.ToText(), state


def _tree(layer: Layer) -> Iterator[Layer]:
  yield layer
  for child in layer.children():
    yield from _tree(child)
