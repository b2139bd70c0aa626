"""The operations of AmoebaNet's cells as layers.

All of them map [batch, height, width, channels] to [batch, ⌈height/stride⌉,
⌈width/stride⌉, filters]. A ReLU at the head of an operation is left to the cell, which
computes it once for all operations that read one state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers.base import Layer
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.conv import Conv2D, SeparableConv2D
from tfpipe.layers.pooling import AvgPool, MaxPool
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams
from tfpipe.spelling import nearest_or_all

_POOL = re.compile(r"(max|avg)_pool_([23])x\2")
_SEPARABLE = re.compile(r"(dil_2_)?separable_([357])x\2_2")
# Filters of a bottleneck's kernels besides the 1×1 at both ends: (height, width).
_BOTTLENECKS = {"3x3": ((3, 3),), "1x7_7x1": ((1, 7), (7, 1))}


class Identity(Layer):
  """Hands on its input."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Returns x."""
    (x,) = inputs
    return x

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost: nothing."""
    (x,) = inputs
    return cls.Cost(params, x)


class ConvChain(Layer):
  """conv → batch norm, then ReLU → conv → batch norm for each further convolution."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `convs` are required."""
    p = super().Params()
    p.Define("convs", [], "Params of the convolutions.")
    p.Define("norm", BatchNorm.Params(), "Params of every batch norm; dim is set here.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    convs = self.params.convs
    self.conv: list[Layer]
    self.norm: list[Layer]
    self.CreateChildren("conv", convs)
    self.CreateChildren(
      "norm", [params.norm.Copy().Set(dim=conv.filter_shape[3]) for conv in convs]
    )

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Applies the chain to x."""
    (x,) = inputs
    for i, (conv, norm) in enumerate(zip(self.conv, self.norm, strict=True)):
      if i > 0:
        x = tf.nn.relu(x)
      x = norm.FProp(theta.norm[i], conv.FProp(theta.conv[i], x))
    return x

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; inputs of convolutions and batch norms are kept."""
    (x,) = inputs
    layer = params.Instantiate()
    costs, kept = [], 0
    for conv, norm in zip(layer.conv, layer.norm, strict=True):
      if costs:
        kept += x.bytes
      costs.append(conv.FPropMeta(conv.params, x))
      x = costs[-1].out_shapes
      costs.append(norm.FPropMeta(norm.params, x))
      kept += x.bytes
    return sum_costs(cls, params, costs, x, kept=kept)


class FactorizedReduction(Layer):
  """Halves a map without losing every second pixel.

  Two 1×1 convolutions of stride 2 to filters/2, the second on the map shifted by one
  pixel; their outputs are concatenated and normalized together.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `input_channels` and an even `filters` are required."""
    p = super().Params()
    p.Define("input_channels", 0, "Channels of the input.")
    p.Define("filters", 0, "Channels of the output.")
    p.Define("norm", BatchNorm.Params(), "Params of the batch norm; dim is set here.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    filters = params.filters
    if filters % 2:
      raise ValueError(f"FactorizedReduction.filters = {filters}: it must be even")
    conv = conv_params((1, 1), params.input_channels, filters // 2, (2, 2))
    self.conv: list[Layer]
    self.norm: Layer
    self.CreateChildren("conv", [conv, conv])
    self.CreateChild("norm", params.norm.Copy().Set(dim=filters))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Reduces x."""
    (x,) = inputs
    parts = [
      conv.FProp(theta.conv[i], part)
      for i, (conv, part) in enumerate(zip(self.conv, (x, _shifted(x)), strict=True))
    ]
    return self.norm.FProp(theta.norm, tf.concat(parts, -1))

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; the shifted map and the input of the batch norm are kept."""
    (x,) = inputs
    layer = params.Instantiate()
    shape = _shifted_shape(x.shape)
    costs = [
      conv.FPropMeta(conv.params, part)
      for conv, part in zip(layer.conv, (x, ArraySpec(shape)), strict=True)
    ]
    y = ArraySpec((*costs[0].out_shapes.shape[:3], params.filters))
    costs.append(layer.norm.FPropMeta(layer.norm.params, y))
    return sum_costs(cls, params, costs, y, kept=ArraySpec(shape).bytes + y.bytes)


class ProjectedPool(Layer):
  """A pool, then 1×1 conv → batch norm, for inputs with another number of channels."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; both are required."""
    p = super().Params()
    p.Define("pool", MaxPool.Params(), "Params of the pool.")
    p.Define("projection", ConvChain.Params(), "Params of the convolution and norm.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    self.pool: Layer
    self.projection: Layer
    self.CreateChild("pool", params.pool)
    self.CreateChild("projection", params.projection)

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Pools and projects x."""
    y = self.pool.FProp(theta.pool, *inputs)
    return self.projection.FProp(theta.projection, y)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; what the pool gives is kept."""
    layer = params.Instantiate()
    pool = layer.pool.FPropMeta(layer.pool.params, *inputs)
    y = pool.out_shapes
    chain = layer.projection.FPropMeta(layer.projection.params, y)
    kept = 0 if pool.activation_bytes else y.bytes
    return sum_costs(cls, params, [pool, chain], chain.out_shapes, kept=kept)


def operation(
  name: str, channels: int, filters: int, stride: int, dilation: int, norm: Any
) -> InstantiableParams:
  """Gives the layer of an operation.

  Args:
    name: as in the genotypes, e.g. `separable_3x3_2`.
    channels: of its input.
    filters: channels of its output.
    stride: 1 or 2.
    dilation: of the filters of a `dil_2_` operation. The name asks for 2; the code that
      was published with GPipe ignores it and takes 1.
    norm: Params of the batch norms.

  Raises:
    ValueError: there is no operation of this name.
  """
  if pool := _POOL.fullmatch(name):
    kind = MaxPool if pool[1] == "max" else AvgPool
    p = kind.Params().Set(window=int(pool[2]), stride=stride)
    if channels == filters:
      return p
    projection = pointwise(channels, filters, 1, norm)
    return ProjectedPool.Params().Set(pool=p, projection=projection)
  if separable := _SEPARABLE.fullmatch(name):
    side, rate = int(separable[2]), dilation if separable[1] else 1
    first = _separable(side, channels, filters).Set(stride=stride, dilation=rate)
    second = _separable(side, filters, filters).Set(dilation=rate)
    return _chain([first, second], norm)
  if name in _BOTTLENECKS:
    return _bottleneck(_BOTTLENECKS[name], channels, filters, stride, norm)
  if name == "none" and stride == 1 and channels == filters:
    return Identity.Params()
  if name in ("none", "1x1"):
    return pointwise(channels, filters, stride, norm)
  known = ["none", "1x1", *_BOTTLENECKS, "max_pool_3x3", "separable_3x3_2"]
  raise ValueError(f"unknown operation {name!r}{nearest_or_all(name, known)}")


def pointwise(
  channels: int, filters: int, stride: int, norm: Any
) -> InstantiableParams:
  """Gives 1×1 conv → batch norm."""
  return _chain([conv_params((1, 1), channels, filters, (stride, stride))], norm)


def conv_params(
  window: tuple[int, int], channels: int, filters: int, stride: tuple[int, int]
) -> InstantiableParams:
  """Gives a convolution with SAME padding."""
  shape = (*window, channels, filters)
  return Conv2D.Params().Set(filter_shape=shape, filter_stride=stride)


def _bottleneck(
  windows: Sequence[tuple[int, int]],
  channels: int,
  filters: int,
  stride: int,
  norm: Any,
) -> InstantiableParams:
  """Gives 1×1 to filters/4, the windows, 1×1 to filters.

  A window has the stride along the axes where it is larger than 1.
  """
  narrow = filters // 4
  convs = [conv_params((1, 1), channels, narrow, (1, 1))]
  for height, width in windows:
    strides = (stride if height > 1 else 1, stride if width > 1 else 1)
    convs.append(conv_params((height, width), narrow, narrow, strides))
  convs.append(conv_params((1, 1), narrow, filters, (1, 1)))
  return _chain(convs, norm)


def _separable(side: int, channels: int, filters: int) -> InstantiableParams:
  return SeparableConv2D.Params().Set(filter_shape=(side, side, channels, filters))


def _chain(convs: list[InstantiableParams], norm: Any) -> InstantiableParams:
  return ConvChain.Params().Set(convs=convs, norm=norm)


def _shifted(x: tf.Tensor) -> tf.Tensor:
  """Drops the first row and column; appends zeros where the side is odd."""
  rows, columns = x.shape[1] % 2, x.shape[2] % 2
  x = x[:, 1:, 1:]
  if rows or columns:
    x = tf.pad(x, [[0, 0], [0, rows], [0, columns], [0, 0]])
  return x


def _shifted_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
  batch, height, width, channels = shape
  return (batch, height - 1 + height % 2, width - 1 + width % 2, channels)


def sum_costs(
  cls: type[Layer],
  params: InstantiableParams,
  costs: Sequence[LayerCost],
  out_shapes: Any,
  *,
  kept: int = 0,
  flops: int = 0,
) -> LayerCost:
  """Adds up the costs of children, the bytes kept between them and flops of its own."""
  matmul_flops = sum(cost.matmul_flops for cost in costs)
  return cls.Cost(
    params,
    out_shapes,
    flops=flops + sum(cost.flops for cost in costs) - matmul_flops,
    matmul_flops=matmul_flops,
    activation_bytes=kept + sum(cost.activation_bytes for cost in costs),
  )
