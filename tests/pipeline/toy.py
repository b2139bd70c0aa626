"""Small layers with every feature a border can have, for tests of the pipeline."""

from __future__ import annotations

from typing import Any

from tfpipe.layers import rng
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Dense(Layer):
  """y = tanh(x w + b), with dropout; side data (a mask) rides along untouched."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("dim", 8, "Width.")
    p.Define("keep", 1.0, "Share of units kept in training.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = self.params.dim
    self.CreateVariable("w", WeightParams((dim, dim), l2=True))
    self.CreateVariable("b", WeightParams((dim,), WeightInit.Constant(0.1)))
    if self.params.keep < 1.0:
      self.CreateSeed()

  def FProp(self, theta: NestedMap, x: tf.Tensor, *rest: Any) -> Any:
    y = tf.tanh(tf.matmul(x, theta.w) + theta.b)
    if self.params.keep < 1.0 and not self.do_eval:
      kept = rng.uniform(theta.seed, y.shape) < self.params.keep
      y = tf.where(kept, y / self.params.keep, tf.zeros_like(y))
    return (y, *rest) if rest else y


class Norm(Layer):
  """Batch normalization without scale; frozen, it uses its moving averages."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("dim", 8, "Width.")
    p.Define("decay", 0.9, "Share of the moving averages that a step keeps.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    shape = (self.params.dim,)
    for name, value in (("moving_mean", 0.0), ("moving_variance", 1.0)):
      init = WeightInit.Constant(value)
      self.CreateVariable(name, WeightParams(shape, init, trainable=False))

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    if self.do_eval or not self.params.trainable:
      mean, variance = theta.moving_mean, theta.moving_variance
    else:
      mean, variance = tf.nn.moments(x, [0])
      self.AddMoments(mean, variance, self.params.decay)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


class TwoInput(Layer):
  """A cell with two inputs, as AmoebaNet's: takes (x, previous x), gives (y, x)."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("dim", 8, "Width.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = self.params.dim
    self.CreateVariable("u", WeightParams((dim, dim), l2=True))
    self.CreateVariable("v", WeightParams((dim, dim), l2=True))

  def FProp(
    self, theta: NestedMap, x: tf.Tensor, previous: tf.Tensor | None = None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    before = x if previous is None else previous
    y = tf.matmul(x, theta.u) + before * tf.sigmoid(tf.matmul(before, theta.v))
    return tf.tanh(y) - before * 0.5 + x * tf.sigmoid(x), x


class Plain(Layer):
  """tanh: no weights, no seed."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x)


class Twice(Layer):
  """x beside itself."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    return tf.concat([x, x], axis=1)


class Penalty(Layer):
  """Gives its inputs as they are, and adds a loss: factor · sum of squares."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("factor", 0.01, "Factor of the loss.")
    return p

  def FProp(self, theta: NestedMap, x: tf.Tensor, *rest: Any) -> Any:
    self.AddLoss(self.params.factor * tf.reduce_sum(tf.square(x)))
    return (x, *rest) if rest else x


class Regression(Layer):
  """Weighted squared error against `target` of the batch."""

  SIDE_INPUTS = ("target", "weight")

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("dim", 8, "Width.")
    p.Define("tied_to", "", "Name of a weight to use as the output matrix.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = self.params.dim
    self.CreateVariable("w", WeightParams((dim, dim), tied_to=self.params.tied_to))

  def FProp(self, theta: NestedMap, x: tf.Tensor, *rest: Any) -> NestedMap:
    side = rest[-1]
    error = tf.reduce_sum(tf.square(tf.matmul(x, theta.w) - side.target), -1)
    weight = tf.reduce_sum(side.weight)
    return NestedMap(
      loss=(tf.reduce_sum(error * side.weight), weight),
      mean_abs=(tf.reduce_sum(tf.abs(x)), tf.cast(tf.size(x), tf.float32)),
    )


def named(*layers: InstantiableParams) -> list[InstantiableParams]:
  """Copies layers, naming those without a name by their position."""
  return [p.Copy().Set(name=p.name or f"layer_{i}") for i, p in enumerate(layers)]
