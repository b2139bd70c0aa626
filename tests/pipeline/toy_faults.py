"""Layers that once went wrong, or that must be refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from tests.pipeline.toy_bodies import Body
from tfpipe.layers.base import Layer
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Chain(Body):
  """A long way from input to output, and as long a one from a constant."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    offset = tf.constant(1.0)
    for _ in range(1500):
      x, offset = x + 0.001, offset * 0.999
    return tf.tanh(tf.matmul(x, theta.w) + offset)


class Scale(Layer):
  """x · factor."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("factor", 0.3, "Factor.")
    return p

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return x * self.params.factor


class Counted(Body):
  """Has a factor that goes up with every instance."""

  made: ClassVar[int] = 0

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    Counted.made += 1
    self.factor = np.float32(1 / Counted.made)

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.matmul(x, theta.w) * self.factor


class Routed(Body):
  """Chooses rows by their first number: of what tanh gives, none."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return x, tf.where(x[:, 0] > 2.0)[:, 0], theta.w


class Treat(Layer):
  """What comes behind `Routed`."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> Any:
    x, rows, w = inputs
    treated = tf.tanh(tf.matmul(tf.gather(x, rows), w))
    return x, rows, treated


class Merge(Layer):
  """What comes behind `Treat`."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> Any:
    x, rows, treated = inputs
    return tf.tensor_scatter_nd_add(x, rows[:, None], treated)


class Turns(Body):
  """A loop."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.map_fn(lambda row: tf.tanh(row @ theta.w), x[:, None])[:, 0]


class Sides(Body):
  """A branch."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    y = tf.matmul(x, theta.w)
    return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.tanh(y), lambda: y * y)


class Named(Body):
  """Depends on its name."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.matmul(x, theta.w) * len(self.name)


@dataclasses.dataclass
class Box:
  """Hides a tensor."""

  inside: Any


class Boxed(Body):
  """Hands on a tensor that nobody sees."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return Box(tf.matmul(x, theta.w)), x


class Inside(Body):
  """Adds a loss within a branch."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    def add() -> tf.Tensor:
      self.AddLoss(tf.reduce_sum(x))
      return x

    return tf.cond(tf.reduce_sum(x) > 0, add, lambda: x)


class Noisy(Body):
  """Has a gradient that is another one every time."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    @tf.custom_gradient
    def noisy(x: tf.Tensor) -> Any:
      return x, lambda dy: dy * tf.random.uniform(dy.shape)

    return noisy(tf.matmul(x, theta.w))


class Wide(Body):
  """Adds a loss of another dtype."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    self.AddLoss(tf.reduce_sum(tf.cast(x, tf.float64)))
    return tf.matmul(x, theta.w)


class Thrice(Body):
  """Hands x on twice, beside what it computes: three gradients of x are added."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return x, x, tf.matmul(x, theta.w)


class Mix(Layer):
  """Adds up what `Thrice` gives, each in its own measure."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> Any:
    x, again, y = inputs
    return y + 0.3 * x + again


class Placed(Body):
  """Decides for itself where it runs."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    with tf.device("CPU:0"):
      return tf.matmul(x, theta.w)


class Holding(Body):
  """Reads a tensor that was made before the graph, directly by an op."""

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    self.table = tf.constant(np.linspace(0.0, 1.0, 64).reshape(8, 8), tf.float32)

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.tanh(tf.matmul(x, theta.w + self.table))


class Table(Body):
  """Has a NumPy array among its Params, which has no text."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("table", None, "Factors, [dim].")
    return p

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.tanh(tf.matmul(x, theta.w)) * tf.constant(self.params.table, tf.float32)
