"""The gradient of a cell, cut into what is run when.

The forward and its gradient are one traced graph. Cut where the gradient begins, it is
a forward that also returns what the gradient keeps of it, and a backward. The backward
is cut once more for schedules that split it (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023): B computes what leads to the gradients at the inputs of layers, W
all the rest, from what B hands on. So any layer splits, nothing is computed twice, and
an op that gives both gradients at once, as that of batch norm, is in B.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tfpipe.lazy import tf
from tfpipe.pipeline.checks import check_compiles, check_pure
from tfpipe.pipeline.subgraph import GraphCutter
from tfpipe.structure import is_differentiable

if TYPE_CHECKING:
  from tfpipe.pipeline.cell import CellFunction


class GradientKey(NamedTuple):
  """Which gradient of a cell's function is meant.

  Attributes:
    dys: for each output tensor, whether a gradient with respect to it will come.
    inputs: whether the gradient with respect to the inputs is needed.
    theta: places of the weights whose gradients are needed.
    loss: place of the output that is minimized, -1 for none: in the last cell.
  """

  dys: tuple[bool, ...]
  inputs: bool
  theta: tuple[int, ...]
  loss: int


class CellGradient:
  """The functions of a cell that training calls.

  A forward's arguments, its outputs, what is kept of it and the upstream gradients are
  flat lists of tensors.

  Attributes:
    dxs: for each input tensor, whether there is a gradient with respect to it.
    weights: places in theta of the weights that have a gradient, in order.
    unsplit: those of them whose gradient an op gives that B needs too.
  """

  def __init__(self, function: CellFunction, key: GradientKey) -> None:
    graph = function.concrete.graph
    self._cutter = function.cutter
    self._args, self._outputs = function.args, list(function.concrete.outputs)
    theta, inputs = function.split_args(self._args)
    sources = [x for x in inputs if key.inputs and is_differentiable(x)]
    weights = [theta[place] for place in key.theta]
    with graph.as_default(), tf.name_scope("gradient"):
      targets, dys = self._targets(function, key)
      entries = [t for t in function.entries if is_differentiable(t)]
      found = _gradients(targets, [*sources, *weights, *entries], dys)
    check_pure(graph, function.layers)
    if function.xla:
      check_compiles(graph, function.layers)
    by_source = dict(zip([x.name for x in sources], found, strict=False))
    self.dxs = tuple(by_source.get(x.name) is not None for x in inputs)
    self._dxs = [g for g in found[: len(sources)] if g is not None]
    of_weights = found[len(sources) : len(sources) + len(weights)]
    pairs = zip(key.theta, of_weights, strict=True)
    self.weights = tuple(place for place, g in pairs if g is not None)
    self._dweights = [g for g in of_weights if g is not None]
    self._plan([g for g in found[len(sources) + len(weights) :] if g is not None])

  def _targets(
    self, function: CellFunction, key: GradientKey
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Pairs what is differentiated with its upstream gradient."""
    outputs = self._outputs[: function.num_tensors]
    targets = list(self._outputs[function.num_outputs - function.num_losses :])
    if key.loss >= 0:
      targets.append(outputs[key.loss])
    ones = [tf.ones_like(target) for target in targets]
    wanted = [y for y, comes in zip(outputs, key.dys, strict=True) if comes]
    self._dys = [tf.compat.v1.placeholder(y.dtype, y.shape) for y in wanted]
    return [*targets, *wanted], [*ones, *self._dys]

  def _plan(self, entries: Sequence[tf.Tensor]) -> None:
    """Decides which op is run where, and so what is kept in between."""
    forward, _ = self._cutter.reach(self._outputs, ())
    forward |= {tensor.op.name for tensor in [*self._args, *self._dys]}
    whole, kept = self._cutter.reach([*self._dxs, *self._dweights], forward)
    given = {tensor.name for tensor in [*self._args, *self._dys]}
    self._kept = [tensor for tensor in kept if tensor.name not in given]
    # The gradient at a layer's input is B's also in the first cell, which has none.
    between = [t for t in entries if t.op.name in whole]
    first, _ = self._cutter.reach([*self._dxs, *between], forward)
    _, rest = self._cutter.reach(self._dweights, forward | first)
    in_b = [self._cutter.source(g).op.name in first for g in self._dweights]
    pairs = zip(self.weights, in_b, strict=True)
    self.unsplit = tuple(place for place, is_in_b in pairs if is_in_b)
    known = {*given, *[tensor.name for tensor in self._kept]}
    self._carried = [tensor for tensor in rest if tensor.name not in known]

  @functools.cached_property
  def forward(self) -> Part:
    """What gives the outputs, then what is kept."""
    return Part(self._cutter, self._args, [*self._outputs, *self._kept])

  @functools.cached_property
  def backward(self) -> Part:
    """What gives the gradients of the inputs, then those of the weights."""
    known = [*self._args, *self._kept, *self._dys]
    return Part(self._cutter, known, [*self._dxs, *self._dweights])

  @functools.cached_property
  def input_gradient(self) -> Part:
    """What gives the gradients of the inputs, then what is carried to W."""
    known = [*self._args, *self._kept, *self._dys]
    return Part(self._cutter, known, [*self._dxs, *self._carried])

  @functools.cached_property
  def weight_gradient(self) -> Part:
    """What gives the gradients of the weights."""
    known = [*self._args, *self._kept, *self._dys, *self._carried]
    return Part(self._cutter, known, self._dweights)

  @property
  def num_dxs(self) -> int:
    """Number of gradients with respect to inputs."""
    return len(self._dxs)


class Part:
  """One of the functions that a cell and its gradient are cut into."""

  def __init__(
    self, cutter: GraphCutter, known: Sequence[tf.Tensor], wanted: Sequence[tf.Tensor]
  ) -> None:
    read = cutter.reads(wanted, known)
    self._places = [place for place, t in enumerate(known) if t.name in read]
    self._function = cutter.function([known[place] for place in self._places], wanted)

  def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a call to the graph under construction.

    Args:
      values: arguments, what is kept, upstream gradients, what is carried: as many of
        them as are known; it is handed only what it reads.
    """
    return list(self._function(*[values[place] for place in self._places]))


def _gradients(
  targets: Sequence[tf.Tensor],
  sources: Sequence[tf.Tensor],
  dys: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
  if not targets or not sources:
    return [None] * len(sources)
  found = tf.gradients(targets, sources, grad_ys=dys)
  return [None if g is None else tf.convert_to_tensor(g) for g in found]
