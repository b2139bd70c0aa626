"""Layers whose FProp does what real ones do: loops, branches, Keras, nested values."""

from __future__ import annotations

from typing import Any

from tfpipe.layers.base import Layer, WeightParams
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Body(Layer):
  """Base: a matrix `w` [dim, dim] and a map of x [batch, dim] to the same shape."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("dim", 8, "Width.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = self.params.dim
    self.CreateVariable("w", WeightParams((dim, dim), l2=True))

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.tanh(tf.matmul(x, theta.w))


class Deep(Body):
  """Keeps seven values of the size of its input."""

  INSIDE = 7

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    y = tf.tanh(tf.matmul(x, theta.w))
    for _ in range(self.INSIDE - 1):
      y = tf.tanh(y + 0.1)
    return y


class WhileLoop(Body):
  """Three turns of a graph loop, with the weight inside."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    def turn(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      return i + 1, tf.sigmoid(tf.matmul(y, theta.w))

    return tf.while_loop(lambda i, _: i < 3, turn, (0, x))[1]


class Branch(Body):
  """A graph condition on the data, one branch without the weight."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    return tf.cond(
      tf.reduce_sum(x) > 0, lambda: tf.tanh(tf.matmul(x, theta.w)), lambda: 2.0 * x
    )


class KerasLayer(Body):
  """A Keras layer, made at the first call, given theta in place of its variables."""

  _dense: Any = None

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    if self._dense is None:
      self._dense = tf.keras.layers.Dense(self.params.dim, "gelu", use_bias=False)
      self._dense.build(x.shape)
    return self._dense.stateless_call([theta.w], [], x)[0]


class KerasOps(Body):
  """Keras' functions."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    y = tf.keras.activations.gelu(tf.keras.ops.matmul(x, theta.w))
    return tf.keras.ops.normalize(y, axis=-1)


class InnerFunction(Body):
  """A tf.function with keyword arguments, None, a Python int and an integer tensor."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    @tf.function(autograph=False)
    def inner(x: Any, *, scale: int, shift: Any, ids: Any, w: Any) -> tf.Tensor:
      assert shift is None
      return scale * tf.gather(tf.matmul(x, w), ids, axis=1)

    ids = tf.range(self.params.dim, dtype=tf.int32)[::-1]
    return inner(x, scale=3, shift=None, ids=ids, w=theta.w)


class ManyOutputs(Body):
  """Gives ten outputs to itself: parts of x, some unused, some integers."""

  def FProp(self, theta: NestedMap, x: tf.Tensor) -> Any:
    values, indices = tf.math.top_k(tf.matmul(x, theta.w), self.params.dim)
    parts = tf.unstack(values, axis=1)
    kept = tf.stack([parts[0] * part for part in parts[:-1]], axis=1)
    return tf.concat([kept, tf.cast(indices[:, :1], tf.float32)], axis=1)


BODIES = (
  Deep,
  WhileLoop,
  Branch,
  KerasLayer,
  KerasOps,
  InnerFunction,
  ManyOutputs,
)
