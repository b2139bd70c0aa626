"""Pooling of NHWC maps."""

from __future__ import annotations

from typing import Any

from tfpipe.checks import check_choice, check_count
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers import window
from tfpipe.layers.base import Layer
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class _Pool(Layer):
  """A square window over the map, channel by channel."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("window", 3, "Rows and columns of the window.")
    p.Define("stride", 1, "Rows and columns between two outputs.")
    p.Define("padding", "SAME", "SAME or VALID.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "window", 1)
    check_count(self, params, "stride", 1)
    check_choice(self, params, "padding", window.PADDINGS)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost: window² operations an output."""
    (x,) = inputs
    side, stride = params.window, params.stride
    out = window.output_map(
      params.name, x, (side, side), (stride, stride), params.padding
    )
    y = ArraySpec((x.shape[0], *out, x.shape[3]), x.dtype)
    return cls.Cost(
      params, y, flops=side * side * y.size, activation_bytes=cls._kept(y)
    )

  @classmethod
  def _kept(cls, y: ArraySpec) -> int:
    return 0


class MaxPool(_Pool):
  """The largest value under each window; padding never wins.

  `FProp(theta, x)`: [batch, height, width, channels] → [batch, height', width',
  channels].
  """

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Pools x."""
    (x,) = inputs
    p = self.params
    return tf.nn.max_pool2d(x, p.window, p.stride, p.padding)

  @classmethod
  def _kept(cls, y: ArraySpec) -> int:
    # The backward op looks for the output in the input.
    return y.bytes


class AvgPool(_Pool):
  """The mean under each window, over the cells inside the map only.

  `FProp(theta, x)`: [batch, height, width, channels] → [batch, height', width',
  channels].
  """

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Pools x."""
    (x,) = inputs
    p = self.params
    return tf.nn.avg_pool2d(x, p.window, p.stride, p.padding)


class GlobalAvgPool(Layer):
  """The mean of each channel: [batch, height, width, channels] → [batch, channels]."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Pools x."""
    (x,) = inputs
    return tf.reduce_mean(x, [1, 2])

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost: one addition a cell."""
    (x,) = inputs
    window.check_map(params.name, x)
    y = ArraySpec((x.shape[0], x.shape[3]), x.dtype)
    return cls.Cost(params, y, flops=x.size)
