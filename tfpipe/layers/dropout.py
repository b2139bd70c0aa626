"""Dropout of elements and of whole paths, by masks that depend on names and examples.

The backward pass needs the masks only.
"""

from __future__ import annotations

from typing import Any

from tfpipe.checks import check_count, check_number
from tfpipe.cost import LayerCost
from tfpipe.layers import rng
from tfpipe.layers.base import Layer
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Dropout(Layer):
  """Zeroes elements at random and scales the others by 1 / keep_prob (Hinton, 2012).

  `FProp(theta, x)`: any shape [batch, ...] → the same. Nothing happens in evaluation.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("keep_prob", 1.0, "Probability that an element stays; 1 is no dropout.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_number(self, params, "keep_prob", "(0, 1]")
    if params.keep_prob < 1:
      self.CreateSeed()

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Drops elements of x."""
    (x,) = inputs
    keep = self.params.keep_prob
    if self.do_eval or keep == 1:
      return x
    kept = rng.uniform(theta.seed, x.shape) < keep
    return tf.where(kept, x * (1 / keep), 0.0)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost: comparing and scaling; the mask is kept, a byte an element."""
    (x,) = inputs
    if params.keep_prob == 1:
      return cls.Cost(params, x)
    flops = rng.uniform_flops(x.shape) + 2 * x.size
    return cls.Cost(params, x, flops=flops, activation_bytes=x.size)


class DropPath(Layer):
  """Drops whole paths of examples; the probability grows with time (Zoph et al., 2018).

  Path i of an example is kept with probability
  keep = 1 - min(1, step / total_steps) · (1 - keep_prob) and then divided by it.
  `FProp(theta, *paths)`: `num_paths` tensors [batch, ...] → a tuple of the same.
  Nothing happens in evaluation.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("keep_prob", 1.0, "Probability in the end that a path stays; 1 is off.")
    p.Define("total_steps", 1, "Step at which the probability gets to keep_prob.")
    p.Define("num_paths", 1, "Number of paths.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_number(self, params, "keep_prob", "(0, 1]")
    check_count(self, params, "total_steps", 1)
    check_count(self, params, "num_paths", 1)
    if params.keep_prob < 1:
      self.CreateSeed()

  def FProp(self, theta: NestedMap, *paths: Any) -> tuple[tf.Tensor, ...]:
    """Drops paths."""
    if self.do_eval or self.params.keep_prob == 1:
      return paths
    scales = self.scales(theta, paths[0].shape[0])
    return tuple(scaled(x, s) for x, s in zip(paths, scales, strict=True))

  def scales(self, theta: NestedMap, batch: int) -> list[tf.Tensor]:
    """Draws what `scaled` multiplies each path by: [batch] of 0 or 1 / keep."""
    p = self.params
    time = tf.cast(theta.seed[1], tf.float32) / p.total_steps
    keep = 1.0 - tf.minimum(1.0, time) * (1.0 - p.keep_prob)
    draws = rng.uniform(theta.seed, [batch, p.num_paths])
    return tf.unstack(tf.floor(keep + draws) / keep, axis=1)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *paths: Any) -> LayerCost:
    """Gives the cost: a multiplication an element; the masks are kept."""
    if params.keep_prob == 1:
      return cls.Cost(params, paths)
    masks = paths[0].shape[0] * params.num_paths
    # rng, then min(1, step / total) · rest, 1 - it; floor(keep + draw) / keep.
    draws = rng.uniform_flops((paths[0].shape[0], params.num_paths))
    flops = draws + 4 + 2 * masks + sum(x.size for x in paths)
    kept = paths[0].itemsize * masks
    return cls.Cost(params, paths, flops=flops, activation_bytes=kept)


def scaled(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
  """Multiplies each example of x [batch, ...] by its element of scale [batch]."""
  scale = tf.cast(scale, x.dtype)
  return x * tf.reshape(scale, [-1] + [1] * (len(x.shape) - 1))
