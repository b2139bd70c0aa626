"""Layers whose borders carry more than one tensor: nests, constants, skips."""

from __future__ import annotations

from typing import Any

from tests.pipeline.toy_bodies import Body
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

ROWS_OF_TABLE = 5


class Open(Layer):
  """Packs x, ids and a mask with a tuple, None and a Python int."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    x, ids, mask = inputs
    return NestedMap(x=x, ids=ids, more=[mask, (0.5 * x, None)], times=3)


class Nested(Body):
  """Uses all that `Open` packs, and packs it again."""

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    self.CreateVariable("table", WeightParams((ROWS_OF_TABLE, self.params.dim)))

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    (nest,) = inputs
    mask, (second, nothing) = nest.more
    assert isinstance(nest.times, int)
    assert nothing is None
    assert mask.dtype == tf.bool
    y = tf.tanh(tf.matmul(nest.x, theta.w)) * nest.times
    y = tf.where(mask, y, 0.0) + tf.gather(theta.table, nest.ids)
    return NestedMap(nest, x=y, more=[mask, (second + y, None)])


class Close(Layer):
  """Unpacks one tensor."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    (nest,) = inputs
    return nest.x + nest.more[1][0]


class Fork(Layer):
  """x → x; x without gradient; integers; a tensor that nobody uses; x for a skip."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tuple[tf.Tensor, ...]:
    (x,) = inputs
    return x, tf.stop_gradient(x), tf.argmax(x, 1), tf.tanh(x), x


class Join(Layer):
  """Uses what `Fork` gave, but for the fourth."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    x, constant, integers, _, skipped = inputs
    return x * constant + tf.cast(integers, tf.float32)[:, None] + 0.5 * skipped


class StopGradient(Layer):
  """Gives x, through which no gradient passes."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    (x,) = inputs
    return tf.stop_gradient(x)


class Rows(Layer):
  """Gathers all rows of x, so that its gradient is sparse."""

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    (x,) = inputs
    return tf.gather(x, tf.range(x.shape[0]))
