"""A layer of a decoder-only Transformer: attention and feed-forward, pre-norm."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tfpipe.cost import LayerCost
from tfpipe.layers.attention import MultiHeadAttention
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
    for name, child in _children(self.params).items():
      self.CreateChild(name, child)

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Maps x [batch, time, dim] to the same shape and dtype."""
    (x,) = inputs
    y = self.attention_norm.FProp(theta.attention_norm, x)
    y = self.attention.FProp(theta.attention, y)
    x += self.attention_dropout.FProp(theta.attention_dropout, y)
    y = self.ff_norm.FProp(theta.ff_norm, x)
    y = self.ff.FProp(theta.ff, y)
    return x + self.ff_dropout.FProp(theta.ff_dropout, y)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [batch, time, dim]."""
    (x,) = inputs
    fields = tuple((k, params.Get(k)) for k in params.GetKeys() if k != "name")
    return dataclasses.replace(_cost(cls, fields, x), name=params.name)


def _children(p: InstantiableParams) -> dict[str, InstantiableParams]:
  norm = LayerNorm.Params().Set(dim=p.dim)
  dropout = Dropout.Params().Set(keep_prob=p.dropout_keep_prob)
  return {
    "attention_norm": norm,
    "attention": MultiHeadAttention.Params().Set(
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
def _cost(cls: type[Layer], fields: tuple, x: Any) -> LayerCost:
  p = cls.Params().Set(**dict(fields))
  costs = [child.cls.FPropMeta(child, x) for child in _children(p).values()]
  matmul_flops = sum(cost.matmul_flops for cost in costs)
  return cls.Cost(
    p,
    x,
    flops=sum(cost.flops for cost in costs) - matmul_flops + 2 * x.size,
    matmul_flops=matmul_flops,
    # Besides its inside: the input of attention and that of feed-forward.
    activation_bytes=sum(cost.activation_bytes for cost in costs) + 2 * x.bytes,
  )
