"""Layer normalization."""

from __future__ import annotations

from typing import Any

from tfpipe.checks import check_count, check_number
from tfpipe.cost import LayerCost
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class LayerNorm(Layer):
  """`(x - mean)/sqrt(variance + epsilon)·scale + bias` over the last dimension.

  Source: Ba, Kiros and Hinton, arXiv:1607.06450. Keeps the normalized input.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; dim must be set."""
    p = super().Params()
    p.Define("dim", 0, "Size of the last dimension.")
    p.Define("epsilon", 1e-6, "Number above 0 added to the variance.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = check_count(self, self.params, "dim", 1)
    check_number(self, self.params, "epsilon", "(0, inf)")
    self.CreateVariable("scale", WeightParams((dim,), WeightInit.Constant(1.0)))
    self.CreateVariable("bias", WeightParams((dim,), WeightInit.Constant(0.0)))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Normalizes x, float32 [..., dim]."""
    (x,) = inputs
    return normalize(x, self.params.epsilon) * theta.scale + theta.bias

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [..., dim]."""
    (x,) = inputs
    if x.shape[-1] != params.dim:
      raise ValueError(f"{params.name}: dim={params.dim}, but the input is {x.shape}")
    rows = x.size // params.dim
    return cls.Cost(
      params, x, flops=7 * x.size + 3 * rows, activation_bytes=x.bytes + 4 * rows
    )


def normalize(x: tf.Tensor, epsilon: float) -> tf.Tensor:
  """Brings the last dimension of float32 x to mean 0 and variance 1.

  Its own gradient keeps the result and a number a row, half of what that of the single
  operations keeps.
  """

  @tf.custom_gradient
  def call(x: tf.Tensor) -> Any:
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    y = centered * inverse

    def gradient(dy: tf.Tensor) -> tf.Tensor:
      mean = tf.reduce_mean(dy, -1, keepdims=True)
      along = tf.reduce_mean(dy * y, -1, keepdims=True)
      return inverse * (dy - mean - y * along)

    return y, gradient

  return call(x)
