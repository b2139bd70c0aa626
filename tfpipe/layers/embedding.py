"""Token embedding with positions."""

from __future__ import annotations

import math
from typing import Any

from tfpipe.checks import check_choice, check_count
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.dropout import Dropout
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

_LONGEST_WAVE = 10000.0


class Embedding(Layer):
  """`dropout(w[ids]·sqrt(dim) + positions)`: ids [batch, time] → [batch, time, dim].

  The table starts with standard deviation 1/sqrt(dim), so that it can be the softmax
  matrix too. Source: Vaswani et al., arXiv:1706.03762, sections 3.4 and 3.5. The
  gradient of the table is IndexedSlices. All is float32: a few rows of the
  table are read, and casting the whole of it would cost more than that.
  """

  dropout: Dropout

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; vocab_size, dim and max_length must be set."""
    p = super().Params()
    p.Define("vocab_size", 0, "Number of tokens; ids are below it.")
    p.Define("dim", 0, "Size of a token's vector.")
    p.Define("max_length", 0, "Most tokens in a row of the batch.")
    p.Define(
      "positions", "sinusoid", "What tells positions apart: sinusoid, learned or none."
    )
    p.Define("dropout_keep_prob", 1.0, "Share of the output that dropout keeps.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    vocab_size = check_count(self, p, "vocab_size", 1)
    dim = check_count(self, p, "dim", 1)
    max_length = check_count(self, p, "max_length", 1)
    init = WeightInit.Gaussian(dim**-0.5)
    self.CreateVariable("w", WeightParams((vocab_size, dim), init, stays_float32=True))
    if check_choice(self, p, "positions", ("sinusoid", "learned", "none")) == "learned":
      self.CreateVariable(
        "positions", WeightParams((max_length, dim), init, stays_float32=True)
      )
    elif p.positions == "sinusoid" and dim % 2:
      raise ValueError(f"{p.name}: dim={dim} is odd; sinusoid positions need it even")
    self.CreateChild("dropout", Dropout.Params().Set(keep_prob=p.dropout_keep_prob))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Maps ids, int32 [batch, time], to float32 [batch, time, dim].

    An id outside the table is an error on CPU; on GPU its vector is 0.
    """
    ids = inputs[0]
    p = self.params
    length = _checked_length(p, ids.shape)
    x = tf.gather(theta.w, ids) * math.sqrt(p.dim)
    if p.positions == "learned":
      x += self._place(theta.positions, *inputs)
    elif p.positions == "sinusoid":
      x += self._place(sinusoid(length, p.dim), *inputs)
    return self.dropout.FProp(theta.dropout, x)

  def _place(self, vectors: tf.Tensor, *inputs: Any) -> tf.Tensor:
    """Takes the vector of each token's position out of [max_length or time, dim]."""
    return vectors[: inputs[0].shape[1]]

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [batch, time]."""
    (ids,) = inputs
    p = params
    length = _checked_length(p, ids.shape)
    x = ArraySpec((*ids.shape, p.dim))
    dropout = Dropout.FPropMeta(Dropout.Params().Set(keep_prob=p.dropout_keep_prob), x)
    flops = x.size if p.positions == "none" else 2 * x.size
    if p.positions == "sinusoid":
      flops += (length + 1) * (p.dim // 2)
    return cls.Cost(
      p,
      x,
      flops=flops + dropout.flops,
      activation_bytes=dropout.activation_bytes,
    )


class SegmentEmbedding(Embedding):
  """An embedding whose positions begin anew with each segment of a row.

  Weights are those of `Embedding`.
  """

  SIDE_INPUTS = ("positions",)

  def _place(self, vectors: tf.Tensor, *inputs: Any) -> tf.Tensor:
    _, side = inputs
    return tf.gather(vectors, side.positions)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for an ArraySpec [batch, time] and side's `positions`."""
    ids, side = inputs
    if side.positions.shape != ids.shape:
      raise ValueError(
        f"{params.name}: positions are {side.positions.shape}, but ids are {ids.shape}"
      )
    return super().FPropMeta(params, ids)


def sinusoid(length: int, dim: int) -> tf.Tensor:
  """Gives the fixed position vectors, float32 [length, dim].

  Column i < dim/2 is sin(position·10000^(-2i/dim)), column dim/2 + i its cosine: the
  columns of arXiv:1706.03762, section 3.5, sines first. They are computed in the graph,
  not stored in it.
  """
  position = tf.range(length, dtype=tf.float32)
  column = tf.range(dim // 2, dtype=tf.float32)
  rate = tf.exp(column * (-2.0 / dim * math.log(_LONGEST_WAVE)))
  angle = position[:, None] * rate
  return tf.concat([tf.sin(angle), tf.cos(angle)], axis=1)


def _checked_length(p: InstantiableParams, shape: Any) -> int:
  if len(shape) != 2:
    raise ValueError(f"{p.name}: ids have shape {shape}, expected [batch, time]")
  if shape[1] > p.max_length:
    raise ValueError(f"{p.name}: max_length={p.max_length}, but ids are {shape}")
  return shape[1]
