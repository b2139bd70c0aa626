"""A layer of a decoder-only Transformer: attention and feed-forward, pre-norm."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tfpipe.cost import LayerCost
from tfpipe.layers.attention import MultiHeadAttention, SegmentAttention
from tfpipe.layers.base import Layer
from tfpipe.layers.dropout import Dropout
from tfpipe.layers.feed_forward import FeedForward
from tfpipe.layers.layer_norm import LayerNorm
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class TransformerBlock(Layer):
  """`x += attention(norm(x))`, then `x += feed_forward(norm(x))`; [batch, time, dim].

  Dropout acts on both terms before they are added. There are 4·dim² + 4·dim +
  2·dim·ff_dim + ff_dim + dim + 4·dim weights.
  """

  # What attends; it takes this block's side inputs.
  ATTENTION: type[MultiHeadAttention] = MultiHeadAttention

  attention_norm: LayerNorm
  attention: MultiHeadAttention
  attention_dropout: Dropout
  ff_norm: LayerNorm
  ff: FeedForward
  ff_dropout: Dropout

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; dim, ff_dim and num_heads must be set."""
    p = super().Params()
    p.Define("dim", 0, "Size of the last dimension of input and output.")
    p.Define("ff_dim", 0, "Size of the layer inside the feed-forward part.")
    p.Define("num_heads", 0, "Number of attention heads; divides dim.")
    p.Define("activation", "relu", "Activation of the feed-forward part: relu or gelu.")
    p.Define("dropout_keep_prob", 1.0, "Share that dropout keeps of each term added.")
    p.Define(
      "init_scale",
      1.0,
      "Factor on the start values of both feed-forward matrices and of the attention's "
      "last one.",
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    for name, child in _children(self.params, self.ATTENTION).items():
      self.CreateChild(name, child)

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Maps x [batch, time, dim] to the same shape and dtype."""
    x, *side = inputs
    y = self.attention_norm.FProp(theta.attention_norm, x)
    y = self.attention.FProp(theta.attention, y, *side)
    x += self.attention_dropout.FProp(theta.attention_dropout, y)
    y = self.ff_norm.FProp(theta.ff_norm, x)
    y = self.ff.FProp(theta.ff, y)
    return x + self.ff_dropout.FProp(theta.ff_dropout, y)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [batch, time, dim], and side inputs if any."""
    x, *side = inputs
    fields = tuple((k, params.Get(k)) for k in params.GetKeys() if k != "name")
    specs = tuple((name, spec) for values in side for name, spec in values.items())
    return dataclasses.replace(_cost(cls, fields, x, specs), name=params.name)


class SegmentTransformerBlock(TransformerBlock):
  """A block for rows that hold several texts, each of which sees only itself."""

  SIDE_INPUTS = SegmentAttention.SIDE_INPUTS
  ATTENTION = SegmentAttention


def _children(
  p: InstantiableParams, attention: type[MultiHeadAttention]
) -> dict[str, InstantiableParams]:
  norm = LayerNorm.Params().Set(dim=p.dim)
  dropout = Dropout.Params().Set(keep_prob=p.dropout_keep_prob)
  return {
    "attention_norm": norm,
    "attention": attention.Params().Set(
      dim=p.dim, num_heads=p.num_heads, output_init_scale=p.init_scale
    ),
    "attention_dropout": dropout,
    "ff_norm": norm,
    "ff": FeedForward.Params().Set(
      dim=p.dim,
      hidden_dim=p.ff_dim,
      activation=p.activation,
      init_scale=p.init_scale,
    ),
    "ff_dropout": dropout,
  }


# Blocks differ in nothing but their names: 1,663 of them are asked, one is reckoned.
@functools.lru_cache
def _cost(cls: type[TransformerBlock], fields: tuple, x: Any, side: tuple) -> LayerCost:
  p = cls.Params().Set(**dict(fields))
  extra = NestedMap(dict(side))
  costs = [
    child.cls.FPropMeta(child, x, *([extra] if child.cls.SIDE_INPUTS else []))
    for child in _children(p, cls.ATTENTION).values()
  ]
  matmul_flops = sum(cost.matmul_flops for cost in costs)
  return cls.Cost(
    p,
    x,
    flops=sum(cost.flops for cost in costs) - matmul_flops + 2 * x.size,
    matmul_flops=matmul_flops,
    # Besides its inside: the input of attention and that of feed-forward.
    activation_bytes=sum(cost.activation_bytes for cost in costs) + 2 * x.bytes,
  )
