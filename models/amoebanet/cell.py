"""A cell of AmoebaNet: two inputs, five pairs of operations, one output."""

from __future__ import annotations

from typing import Any, Protocol

from models.amoebanet.blocks import (
  ConvChain,
  FactorizedReduction,
  Identity,
  ProjectedPool,
  sum_costs,
)
from models.amoebanet.genotype import GENOTYPES
from models.amoebanet.operations import adapter, operation, pointwise
from tfpipe.checks import check_bool, check_choice, check_count
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers import window
from tfpipe.layers.base import Layer
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.dropout import DropPath, scaled
from tfpipe.layers.pooling import AvgPool
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Cell(Layer):
  """Evaluates a genotype.

  `FProp(theta, x, previous)`: x [batch, height, width, input_channels] is the output of
  the layer before, `previous` that of the one before it; the first cell gets x only.
  Gives (output, x): output [batch, ⌈height/s⌉, ⌈width/s⌉, filters · number of states
  concatenated], s = 2 in a reduction cell.

  State 0 is x and state 1 is `previous`, both brought to `filters` channels and the
  size of x. Operations on them have stride 2 in a reduction cell.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `filters` and the channels are required."""
    p = super().Params()
    p.Define("genotype", "amoebanet_d", "Name of the genotype.")
    p.Define("reduction", False, "Whether this is the cell that halves the map.")
    p.Define("filters", 0, "Channels of every state.")
    p.Define("input_channels", 0, "Channels of x.")
    p.Define("previous_channels", 0, "Channels of `previous`; 0 if there is none.")
    p.Define("previous_is_larger", False, "Whether `previous` has twice the side of x.")
    p.Define("dilation", 1, "Dilation of the filters of `dil_2_` operations.")
    p.Define("norm", BatchNorm.Params(), "Params of every batch norm.")
    p.Define("drop_path", DropPath.Params(), "Params of the dropping of operations.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    genotype = GENOTYPES[check_choice(self, p, "genotype", tuple(GENOTYPES))]
    is_reduction = check_bool(self, p, "reduction")
    check_bool(self, p, "previous_is_larger")
    for name, minimum in (("filters", 4), ("input_channels", 1), ("dilation", 1)):
      check_count(self, p, name, minimum)
    if check_count(self, p, "previous_channels", 0) == 0 and p.previous_is_larger:
      raise ValueError(
        "Cell.previous_is_larger = True: with previous_channels = 0 there is none"
      )
    self.wiring = genotype.reduction if is_reduction else genotype.normal
    self._operations = [operation for pair in self.wiring.pairs for operation in pair]
    self._create_children()

  def _create_children(self) -> None:
    p = self.params
    self.input: Layer
    self.previous: Layer
    self.op: list[Layer]
    self.output: list[Layer]
    self.drop_path: DropPath
    first, second = p.filters, p.filters if p.previous_channels else p.input_channels
    channels = (first, second, *[p.filters] * len(self.wiring.pairs))
    self.CreateChild("input", pointwise(p.input_channels, p.filters, 1, p.norm))
    before = p.previous_channels or p.filters
    self.CreateChild(
      "previous", adapter(before, p.filters, p.previous_is_larger, p.norm)
    )
    ops = []
    for op in self._operations:
      stride = 2 if p.reduction and op.state < 2 else 1
      args = (channels[op.state], p.filters, stride, p.dilation, p.norm)
      ops.append(operation(op.name, *args))
    self.CreateChildren("op", ops)
    outputs = [
      adapter(channels[s], p.filters, p.reduction and s < 2, p.norm)
      for s in self.wiring.concat
    ]
    self.CreateChildren("output", outputs)
    num_paths = sum(op.name != "none" for op in self._operations)
    self.CreateChild("drop_path", p.drop_path.Copy().Set(num_paths=num_paths))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the cell."""
    x = inputs[0]
    scales = None
    if not self.do_eval and self.params.drop_path.keep_prob < 1:
      scales = self.drop_path.scales(theta.drop_path, x.shape[0])
    return self._wire(_Compute(scales), theta, inputs), x

  def _wire(self, run: _Run, theta: Any, inputs: tuple[Any, ...]) -> Any:
    """Follows the wiring, with tensors or, for the cost, with ArraySpecs."""
    x, previous = inputs[0], inputs[-1]
    states = [
      run.call(self.input, theta.input, run.relu(x)),
      run.call(self.previous, theta.previous, _head(run, self.previous, previous)),
    ]
    pair = []
    for op, layer, weights in zip(self._operations, self.op, theta.op, strict=True):
      y = run.call(layer, weights, _head(run, layer, states[op.state]))
      pair.append(y if op.name == "none" else run.drop(y))
      if len(pair) == 2:
        states.append(run.add(*pair))
        pair = []
    parts = [
      run.call(layer, weights, states[state])
      for state, layer, weights in zip(
        self.wiring.concat, self.output, theta.output, strict=True
      )
    ]
    return run.concat(parts)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost.

    Raises:
      ValueError: other inputs than those that the Params say.
    """
    _check_inputs(params, inputs)
    layer = params.Instantiate()
    theta = layer.Theta(dict.fromkeys([*layer.weights(), *layer.seeds()]))
    run = _Measure()
    y = layer._wire(run, theta, inputs)
    drop_path = layer.drop_path
    costs = [*run.costs, drop_path.FPropMeta(drop_path.params, *run.paths)]
    kept = run.kept_bytes(inputs)
    return sum_costs(cls, params, costs, (y, inputs[0]), kept=kept, flops=run.flops)


def _check_inputs(params: InstantiableParams, inputs: tuple[ArraySpec, ...]) -> None:
  name = params.name or Cell.__name__
  channels = [n for n in (params.input_channels, params.previous_channels) if n]
  if len(inputs) != len(channels):
    raise ValueError(
      f"{name}: got {len(inputs)} inputs, expected {len(channels)} with "
      f"previous_channels = {params.previous_channels}"
    )
  for x, expected in zip(inputs, channels, strict=True):
    window.check_map(name, x, expected)
  step = 2 if params.previous_is_larger else 1
  sides = tuple(-(-side // step) for side in inputs[-1].shape[1:3])
  if len(inputs) == 2 and sides != inputs[0].shape[1:3]:
    raise ValueError(
      f"{name}: got maps of {inputs[0].shape[1:3]} and, of the layer before, "
      f"{inputs[1].shape[1:3]}, expected {'twice' if step == 2 else 'the same'} with "
      f"previous_is_larger = {params.previous_is_larger}"
    )


def _head(run: _Run, layer: Layer, state: Any) -> Any:
  """Gives what an operation reads of a state: convolutions begin with a ReLU."""
  return run.relu(state) if isinstance(layer, _CONVOLUTIONS) else state


_CONVOLUTIONS = (ConvChain, FactorizedReduction)


class _Run(Protocol):
  """What the wiring does with values."""

  def call(self, layer: Layer, theta: Any, x: Any) -> Any: ...

  def relu(self, x: Any) -> Any: ...

  def drop(self, x: Any) -> Any: ...

  def add(self, left: Any, right: Any) -> Any: ...

  def concat(self, parts: list[Any]) -> Any: ...


class _Compute:
  """Computes tensors."""

  def __init__(self, scales: list[tf.Tensor] | None) -> None:
    self._scales = None if scales is None else iter(scales)
    self._relus: dict[int, tf.Tensor] = {}

  def call(self, layer: Layer, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    return layer.FProp(theta, x)

  def relu(self, x: tf.Tensor) -> tf.Tensor:
    if id(x) not in self._relus:
      self._relus[id(x)] = tf.nn.relu(x)
    return self._relus[id(x)]

  def drop(self, x: tf.Tensor) -> tf.Tensor:
    return x if self._scales is None else scaled(x, next(self._scales))

  def add(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return left + right

  def concat(self, parts: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat(parts, -1)


class _Measure:
  """Adds up costs; values are told apart by identity, as equal ArraySpecs abound."""

  def __init__(self) -> None:
    self.costs: list[LayerCost] = []
    self.paths: list[ArraySpec] = []
    self.flops = 0
    self._relus: dict[int, ArraySpec] = {}
    self._kept: dict[int, ArraySpec] = {}

  def call(self, layer: Layer, theta: Any, x: ArraySpec) -> ArraySpec:
    cost = layer.FPropMeta(layer.params, x)
    self.costs.append(cost)
    if _keeps_input(layer):
      self._kept[id(x)] = x
    return cost.out_shapes

  def relu(self, x: ArraySpec) -> ArraySpec:
    if id(x) not in self._relus:
      y = self._relus[id(x)] = ArraySpec(x.shape, x.dtype)
      self._kept[id(y)] = y
    return self._relus[id(x)]

  def drop(self, x: ArraySpec) -> ArraySpec:
    self.paths.append(x)
    return x

  def add(self, left: ArraySpec, right: ArraySpec) -> ArraySpec:
    self.flops += left.size
    return ArraySpec(left.shape, left.dtype)

  def concat(self, parts: list[ArraySpec]) -> ArraySpec:
    channels = sum(part.shape[-1] for part in parts)
    return ArraySpec((*parts[0].shape[:-1], channels), parts[0].dtype)

  def kept_bytes(self, inputs: tuple[ArraySpec, ...]) -> int:
    """Gives the bytes of values that operations keep, inputs of the cell excepted."""
    given = {id(x) for x in inputs}
    return sum(x.bytes for key, x in self._kept.items() if key not in given)


def _keeps_input(layer: Layer) -> bool:
  """Tells whether the gradient of an operation needs its input."""
  if isinstance(layer, ProjectedPool):
    layer = layer.pool
  return not isinstance(layer, (AvgPool, Identity))
