"""The gradient of a layer, cut into what is run when.

The forward and its gradient are one traced graph. Cut where the gradient begins, it is
a forward that also returns what the gradient keeps of it, and a backward. The backward
is cut once more for schedules that split it (Qi et al., "Zero Bubble Pipeline
Parallelism", 2023): B computes what leads to the gradients of the inputs, W all the
rest, from what B hands on. So any layer splits, nothing is computed twice, and an op
that gives both gradients at once, as that of batch norm, is in B.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tfpipe.lazy import tf
from tfpipe.pipeline import mixed_precision
from tfpipe.pipeline.call import Call
from tfpipe.pipeline.checks import check_compiles, check_pure
from tfpipe.structure import is_differentiable

if TYPE_CHECKING:
  from tfpipe.pipeline.layer_function import LayerFunction


# Ops that the backward does again instead of keeping what they give. A reshaped tensor
# is the same memory once more; the gradient of max pooling on a CPU is several times as
# fast where the pooling itself is in the same function.
_AGAIN = ("MaxPool", "Reshape", "Squeeze")


class GradientKey(NamedTuple):
  """Which gradient of a layer's function is meant.

  Attributes:
    dys: for each output tensor, whether a gradient with respect to it will come.
    inputs: whether the gradient with respect to the inputs is needed.
    theta: places of the weights whose gradients are needed.
    loss: place of the output that is minimized, -1 for none: in the last layer.
  """

  dys: tuple[bool, ...]
  inputs: bool
  theta: tuple[int, ...]
  loss: int


class LayerGradient:
  """The functions of a layer that training calls.

  They take what is known when they are called: the arguments of the forward, what is
  kept of it, the upstream gradients, what B carries to W.

  Attributes:
    dxs: for each input tensor, whether there is a gradient with respect to it.
    weights: places in theta of the weights that have a gradient, in order.
    unsplit: those of them whose gradient an op gives that B needs too.
    dys: placeholders, in the traced graph, of the upstream gradients.
    kept: tensors, in the traced graph, that are kept.
    carried: those that B carries to W.
  """

  def __init__(self, function: LayerFunction, key: GradientKey) -> None:
    self._cutter, self._execution = function.cutter, function.execution
    self._args, self._outputs = function.args, function.outputs
    theta = function.args[: function.num_weights]
    inputs = function.args[function.num_weights + 1 :][: function.num_inputs]
    sources = [x for x in inputs if key.inputs and is_differentiable(x)]
    weights = [theta[place] for place in key.theta]
    graph = self._cutter.graph
    with (
      mixed_precision.naming(function.layer),
      graph.as_default(),
      tf.name_scope("gradient"),
    ):
      targets, dys = self._targets(function, key)
      found = _gradients(targets, [*sources, *weights], dys)
    check_pure(graph, function.layer)
    if function.execution.xla:
      check_compiles(graph, function.layer)
    by_source = dict(zip([x.name for x in sources], found, strict=False))
    self.dxs = tuple(by_source.get(x.name) is not None for x in inputs)
    self._dxs = [g for g in found[: len(sources)] if g is not None]
    pairs = list(zip(key.theta, found[len(sources) :], strict=True))
    self.weights = tuple(place for place, g in pairs if g is not None)
    self._dweights = [g for _, g in pairs if g is not None]
    self._plan()

  def _targets(
    self, function: LayerFunction, key: GradientKey
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Pairs what is differentiated with its upstream gradient."""
    tensors = self._outputs[: function.num_tensors]
    targets = self._outputs[function.num_tensors :][: function.num_losses]
    if key.loss >= 0:
      targets.append(tensors[key.loss])
    scale = function.loss_scale
    ones = [tf.ones_like(target) if scale is None else scale for target in targets]
    wanted = [y for y, comes in zip(tensors, key.dys, strict=True) if comes]
    self.dys = [tf.compat.v1.placeholder(y.dtype, y.shape) for y in wanted]
    return [*targets, *wanted], [*ones, *self.dys]

  def _plan(self) -> None:
    """Decides which op is run where, and so what is kept in between."""
    given = {tensor.op.name for tensor in [*self._args, *self.dys]}
    ops = self._cutter.reach(self._outputs, ())[0]
    forward = given | {name for name in ops if not self._is_done_again(name, given)}
    _, kept = self._cutter.reach([*self._dxs, *self._dweights], forward)
    self.kept = [tensor for tensor in kept if tensor.op.name not in given]
    first, _ = self._cutter.reach(self._dxs, forward)
    # B does not carry to W what W can cast itself.
    first = {name for name in first if not self._is_cast_again(name, given)}
    _, rest = self._cutter.reach(self._dweights, forward | first)
    in_b = [self._cutter.source(g).op.name in first for g in self._dweights]
    pairs = zip(self.weights, in_b, strict=True)
    self.unsplit = tuple(place for place, is_in_b in pairs if is_in_b)
    known = {tensor.name for tensor in self.kept}
    self.carried = [t for t in rest if t.op.name not in given and t.name not in known]

  def _is_done_again(self, name: str, given: set[str]) -> bool:
    op = self._cutter.graph.get_operation_by_name(name)
    return op.type in _AGAIN or mixed_precision.is_cast_again(op, given)

  def _is_cast_again(self, name: str, given: set[str]) -> bool:
    op = self._cutter.graph.get_operation_by_name(name)
    return mixed_precision.is_cast_again(op, given)

  @functools.cached_property
  def forward(self) -> Call:
    """What gives the outputs, then what is kept."""
    wanted = [*self._outputs, *self.kept]
    return Call(self._cutter, self._args, wanted, execution=self._execution)

  @functools.cached_property
  def again(self) -> Call:
    """What gives only what is kept."""
    return Call(self._cutter, self._args, self.kept, execution=self._execution)

  @functools.cached_property
  def backward(self) -> Call:
    """What gives the gradients of the inputs, then those of the weights."""
    return self._call([], self._dxs, self._dweights)

  @functools.cached_property
  def input_gradient(self) -> Call:
    """What gives the gradients of the inputs, then what is carried to W."""
    return self._call([], [*self._dxs, *self.carried], [])

  @functools.cached_property
  def weight_gradient(self) -> Call:
    """What gives the gradients of the weights."""
    return self._call(self.carried, [], self._dweights)

  @property
  def num_dxs(self) -> int:
    """Number of gradients with respect to inputs."""
    return len(self._dxs)

  def _call(
    self,
    carried: Sequence[tf.Tensor],
    wanted: Sequence[tf.Tensor],
    summed: Sequence[tf.Tensor],
  ) -> Call:
    known = [*self._args, *self.kept, *self.dys, *carried]
    return Call(self._cutter, known, wanted, summed, execution=self._execution)


def _gradients(
  targets: Sequence[tf.Tensor],
  sources: Sequence[tf.Tensor],
  dys: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
  if not targets or not sources:
    return [None] * len(sources)
  found = tf.gradients(targets, sources, grad_ys=dys)
  return [None if g is None else tf.convert_to_tensor(g) for g in found]
