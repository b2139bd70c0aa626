"""What AmoebaNet's operations are made of, as layers.

All map [batch, height, width, channels] to [batch, ⌈height/stride⌉, ⌈width/stride⌉,
filters].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers import window
from tfpipe.layers.base import Layer
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.conv import Conv2D, subsample
from tfpipe.layers.pooling import MaxPool
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


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

  Two 1×1 convolutions to filters/2, one on the pixels in even rows and columns, one on
  those in odd ones (zeros where a last odd one is missing); their outputs are
  concatenated and normalized together.
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
    conv = conv_params((1, 1), params.input_channels, filters // 2, (1, 1))
    self.conv: list[Layer]
    self.norm: Layer
    self.CreateChildren("conv", [conv, conv])
    self.CreateChild("norm", params.norm.Copy().Set(dim=filters))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Reduces x."""
    (x,) = inputs
    parts = [
      conv.FProp(theta.conv[i], subsample(x, (2, 2), offset=i))
      for i, conv in enumerate(self.conv)
    ]
    return self.norm.FProp(theta.norm, tf.concat(parts, -1))

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; both halves and the input of the batch norm are kept."""
    (x,) = inputs
    window.check_map(params.name or cls.__name__, x, params.input_channels)
    layer = params.Instantiate()
    batch, height, width, channels = x.shape
    half = ArraySpec((batch, -(-height // 2), -(-width // 2), channels), x.dtype)
    y = ArraySpec((*half.shape[:3], params.filters), x.dtype)
    costs = [conv.FPropMeta(conv.params, half) for conv in layer.conv]
    costs.append(layer.norm.FPropMeta(layer.norm.params, y))
    return sum_costs(cls, params, costs, y, kept=2 * half.bytes + y.bytes)


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


def conv_params(
  window: tuple[int, int], channels: int, filters: int, stride: tuple[int, int]
) -> InstantiableParams:
  """Gives a convolution with SAME padding."""
  shape = (*window, channels, filters)
  return Conv2D.Params().Set(filter_shape=shape, filter_stride=stride)


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
