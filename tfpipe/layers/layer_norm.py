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

  Source: Ba, Kiros and Hinton, arXiv:1607.06450. Computes in float32; keeps the
  normalized input in its own dtype.
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
    for name, value in (("scale", 1.0), ("bias", 0.0)):
      init = WeightInit.Constant(value)
      self.CreateVariable(name, WeightParams((dim,), init, stays_float32=True))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Normalizes x [..., dim]."""
    (x,) = inputs
    y = tf.cast(normalize(x, self.params.epsilon), tf.float32)
    return tf.cast(y * theta.scale + theta.bias, x.dtype)

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
  """Brings the last dimension of x to mean 0 and variance 1, computed in float32.

  Its own gradient keeps the result, in the dtype of x, and a number a row, half of what
  that of the single operations keeps.
  """

  @tf.custom_gradient
  def call(x: tf.Tensor) -> Any:
    wide = tf.cast(x, tf.float32)
    centered = wide - tf.reduce_mean(wide, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    y = tf.cast(centered * inverse, x.dtype)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
      dy, normal = tf.cast(dy, tf.float32), tf.cast(y, tf.float32)
      mean = tf.reduce_mean(dy, -1, keepdims=True)
      along = tf.reduce_mean(dy * normal, -1, keepdims=True)
      return tf.cast(inverse * (dy - mean - normal * along), x.dtype)

    return y, gradient

  return call(x)
