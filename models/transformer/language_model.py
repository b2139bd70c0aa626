"""A decoder-only Transformer language model, as a sequence of layers (GPipe, 4)."""

from __future__ import annotations

from models.transformer.block import SegmentTransformerBlock, TransformerBlock
from tfpipe.checks import check_bool, check_count
from tfpipe.layers.embedding import Embedding, SegmentEmbedding
from tfpipe.layers.layer_norm import LayerNorm
from tfpipe.layers.softmax_loss import SoftmaxLoss
from tfpipe.params import InstantiableParams
from tfpipe.task import Task

_SIZES = (
  "vocab_size",
  "sequence_length",
  "num_layers",
  "model_dim",
  "ff_dim",
  "num_heads",
)


class TransformerLm(Task):
  """Predicts the next token: `embedding`, `layer_0` ..., `softmax`.

  With L layers of width d, feed-forward width f and V tokens it has L·(4d² + 4d + 2df
  + f + d + 4d) + 2Vd + V weights (GPipe, arXiv:1811.06965, table 1); V·d less when the
  table is tied to the softmax, 2d more with a final norm.
  """

  INPUT_FIELDS = ("ids",)

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; the sizes must be set."""
    p = super().Params()
    p.Define("vocab_size", 0, "Number of tokens.")
    p.Define("sequence_length", 0, "Most tokens in a row of the batch.")
    p.Define("num_layers", 0, "Number of blocks of attention and feed-forward.")
    p.Define("model_dim", 0, "Width of the model.")
    p.Define("ff_dim", 0, "Width inside the feed-forward part.")
    p.Define("num_heads", 0, "Number of attention heads; divides model_dim.")
    p.Define("activation", "relu", "Activation of the feed-forward part: relu or gelu.")
    p.Define("positions", "sinusoid", "Positions: sinusoid, learned or none.")
    p.Define(
      "dropout_keep_prob",
      1.0,
      "Share that dropout keeps of the embedding and of each term added by a layer.",
    )
    p.Define(
      "packed",
      False,
      "Whether a row holds several texts, told apart by the input's segment_ids and "
      "positions; each then sees only itself. The weights are the same.",
    )
    p.Define("tie_embeddings", False, "Whether the softmax matrix is the input table.")
    p.Define("final_norm", False, "Whether a layer norm precedes the softmax.")
    p.Define(
      "depth_scaled_init",
      False,
      "Whether residual branches start smaller by the number of layers.",
    )
    p.Define("logits_abs_max", 0.0, "Logits are clipped to ± this; 0 does not clip.")
    p.Define("label_smoothing", 0.0, "Share of the label spread over the vocabulary.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    for name in _SIZES:
      check_count(self, p, name, 1)
    for name in ("packed", "tie_embeddings", "final_norm", "depth_scaled_init"):
      check_bool(self, p, name)
    if p.model_dim % p.num_heads:
      divisors = [n for n in range(1, p.model_dim + 1) if p.model_dim % n == 0]
      best = min(divisors, key=lambda n: abs(n - p.num_heads))
      raise ValueError(
        f"num_heads={p.num_heads} does not divide model_dim={p.model_dim}; {best} does"
      )

  def Layers(self) -> list[InstantiableParams]:
    """Lists embedding, blocks and softmax."""
    p = self.params
    embedding = (
      (SegmentEmbedding if p.packed else Embedding)
      .Params()
      .Set(
        name="embedding",
        vocab_size=p.vocab_size,
        dim=p.model_dim,
        max_length=p.sequence_length,
        positions=p.positions,
        dropout_keep_prob=p.dropout_keep_prob,
      )
    )
    block_cls = SegmentTransformerBlock if p.packed else TransformerBlock
    block = block_cls.Params().Set(
      dim=p.model_dim,
      ff_dim=p.ff_dim,
      num_heads=p.num_heads,
      activation=p.activation,
      dropout_keep_prob=p.dropout_keep_prob,
      init_scale=p.num_layers**-0.5 if p.depth_scaled_init else 1.0,
    )
    blocks = [block.Copy().Set(name=f"layer_{i}") for i in range(p.num_layers)]
    norm = LayerNorm.Params().Set(name="final_norm", dim=p.model_dim)
    softmax = SoftmaxLoss.Params().Set(
      name="softmax",
      dim=p.model_dim,
      vocab_size=p.vocab_size,
      tied_to="embedding/w" if p.tie_embeddings else "",
      logits_abs_max=p.logits_abs_max,
      label_smoothing=p.label_smoothing,
    )
    return [embedding, *blocks, *([norm] if p.final_norm else []), softmax]
