"""Causal self-attention."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tfpipe.checks import check_count, check_number
from tfpipe.cost import LayerCost
from tfpipe.layers.base import Layer
from tfpipe.layers.linear import Linear
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class MultiHeadAttention(Layer):
  """Self-attention in which a position sees itself and those before it.

  `softmax(q·kᵀ/sqrt(dim/num_heads))·v` for each head, between projections with biases:
  4·dim² + 4·dim weights. Source: Vaswani et al., arXiv:1706.03762, section 3.2.
  Costs 8·dim² + 4·time·dim flops a position in its products.
  """

  qkv: Linear
  output: Linear

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; dim and num_heads must be set."""
    p = super().Params()
    p.Define("dim", 0, "Size of the last dimension of input and output.")
    p.Define("num_heads", 0, "Number of heads; divides dim.")
    p.Define("output_init_scale", 1.0, "Factor on the start values of the last matrix.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    dim = check_count(self, p, "dim", 1)
    check_count(self, p, "num_heads", 1)
    check_number(self, p, "output_init_scale", "(0, inf)")
    if dim % p.num_heads:
      raise ValueError(f"{p.name}: num_heads={p.num_heads} does not divide dim={dim}")
    linear = Linear.Params().Set(in_dim=dim)
    # Three matrices side by side; each starts as if it stood alone.
    self.CreateChild("qkv", linear.Copy().Set(out_dim=3 * dim, init_scale=math.sqrt(2)))
    self.CreateChild(
      "output", linear.Copy().Set(out_dim=dim, init_scale=p.output_init_scale)
    )

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Maps x [batch, time, dim] to the same shape and dtype."""
    x = inputs[0]
    heads = self.params.num_heads
    batch, time, dim = x.shape
    qkv = tf.reshape(
      self.qkv.FProp(theta.qkv, x), [batch, time, 3 * heads, dim // heads]
    )
    q, k, v = tf.split(tf.transpose(qkv, [0, 2, 1, 3]), 3, axis=1)
    scores = tf.matmul(q * math.sqrt(heads / dim), k, transpose_b=True)
    seen = masked_softmax(scores, self._mask(*inputs))
    y = tf.transpose(tf.matmul(seen, v), [0, 2, 1, 3])
    return self.output.FProp(theta.output, tf.reshape(y, x.shape))

  def _mask(self, *inputs: Any) -> tf.Tensor:
    """Gives what is added to the scores [batch, heads, time, time]: 0 or -inf."""
    return causal_mask(inputs[0].shape[1])

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [batch, time, dim]."""
    (x,) = inputs
    p = params
    if len(x.shape) != 3 or x.shape[2] != p.dim:
      raise ValueError(
        f"{p.name}: the input is {x.shape}, expected [batch, time, dim={p.dim}]"
      )
    batch, time, _ = x.shape
    scores = batch * p.num_heads * time * time
    return cls.Cost(
      p,
      x,
      # Biases, scaled queries; mask and softmax; the mask's comparison.
      flops=5 * x.size + 6 * scores + time * time,
      matmul_flops=8 * x.size * p.dim + 4 * x.size * time,
      # Scaled queries, keys, values, the heads' output; the softmax.
      activation_bytes=4 * x.bytes + x.itemsize * scores,
    )


class SegmentAttention(MultiHeadAttention):
  """Self-attention in which a position sees itself and those before it in its segment.

  For rows that hold several texts: what it gives for a text is what the text alone in a
  row would have, in float32 up to the order of sums. Weights are those of
  `MultiHeadAttention`.
  """

  SIDE_INPUTS = ("segment_ids",)

  def _mask(self, *inputs: Any) -> tf.Tensor:
    _, side = inputs
    # As float32, for TensorFlow compares int32 on the host, not on GPU.
    segment = tf.cast(side.segment_ids, tf.float32)
    same = tf.equal(segment[:, None, :, None], segment[:, None, None, :])
    return tf.where(same, causal_mask(segment.shape[1]), -math.inf)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for an ArraySpec [batch, time, dim] and side's `segment_ids`."""
    x, side = inputs
    if side.segment_ids.shape != x.shape[:2]:
      raise ValueError(
        f"{params.name}: segment_ids are {side.segment_ids.shape}, but the input is "
        f"{x.shape}"
      )
    cost = super().FPropMeta(params, x)
    # The comparison of segments.
    return dataclasses.replace(cost, flops=cost.flops + x.shape[0] * x.shape[1] ** 2)


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  """Computes, in float32, softmax over the last dimension of `scores + mask`.

  Its own gradient is that of `tf.nn.softmax`, and keeps the result in the dtype in
  which it is handed on.

  Args:
    scores: [..., time, time].
    mask: float32, of a shape that is broadcast to that of the scores; 0 or -inf.

  Returns:
    Shape and dtype of the scores.
  """

  @tf.custom_gradient
  def call(scores: tf.Tensor) -> Any:
    y = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + mask), scores.dtype)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
      seen, dy = tf.cast(y, tf.float32), tf.cast(dy, tf.float32)
      along = tf.reduce_sum(dy * seen, -1, keepdims=True)
      return tf.cast((dy - along) * seen, scores.dtype)

    return y, gradient

  return call(scores)


def causal_mask(time: int) -> tf.Tensor:
  """Gives float32 [time, time]: 0 where column ≤ row, -inf elsewhere.

  Added to the scores it leaves each row one finite number at least, so that neither
  softmax nor gradient meets inf - inf. It is computed in the graph, not stored in it.
  """
  # Of floats, for TensorFlow has no comparison of int32 on GPU.
  position = tf.range(time, dtype=tf.float32)
  return tf.where(position[:, None] >= position, 0.0, -math.inf)
