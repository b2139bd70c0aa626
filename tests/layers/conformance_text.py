"""The rows of the conformance table that belong to text: see `conformance.py`."""

from __future__ import annotations

from models.transformer.block import SegmentTransformerBlock, TransformerBlock
from tfpipe.cost import ArraySpec
from tfpipe.layers.attention import MultiHeadAttention, SegmentAttention
from tfpipe.layers.embedding import Embedding, SegmentEmbedding
from tfpipe.layers.feed_forward import FeedForward
from tfpipe.layers.layer_norm import LayerNorm
from tfpipe.layers.linear import Linear
from tfpipe.layers.softmax_loss import SoftmaxLoss

_BATCH, _TIME, _DIM, _HIDDEN, _VOCAB = 2, 6, 8, 20, 50

_X = (ArraySpec((_BATCH, _TIME, _DIM)),)
_IDS = (ArraySpec((_BATCH, _TIME), "int32"),)
_SIDE = {
  "labels": ArraySpec((_BATCH, _TIME), "int32"),
  "weights": ArraySpec((_BATCH, _TIME)),
}

_SEGMENTS = {"segment_ids": ArraySpec((_BATCH, _TIME), "int32")}
_POSITIONS = {"positions": ArraySpec((_BATCH, _TIME), "int32")}

_LINEAR = Linear.Params().Set(in_dim=_DIM, out_dim=_HIDDEN)
_EMBEDDING = Embedding.Params().Set(vocab_size=_VOCAB, dim=_DIM, max_length=_TIME)
_SEGMENT_EMBEDDING = SegmentEmbedding.Params().Set(
  vocab_size=_VOCAB, dim=_DIM, max_length=_TIME
)
_FEED_FORWARD = FeedForward.Params().Set(dim=_DIM, hidden_dim=_HIDDEN)
_SOFTMAX = SoftmaxLoss.Params().Set(dim=_DIM, vocab_size=_VOCAB)
_BLOCK = TransformerBlock.Params().Set(dim=_DIM, ff_dim=_HIDDEN, num_heads=2)

ROWS = [
  ("linear", _LINEAR.Copy, _X, None),
  ("linear-no-bias", lambda: _LINEAR.Copy().Set(bias=False), _X, None),
  ("linear-relu", lambda: _LINEAR.Copy().Set(activation="relu"), _X, None),
  ("linear-gelu", lambda: _LINEAR.Copy().Set(activation="gelu"), _X, None),
  ("layer-norm", lambda: LayerNorm.Params().Set(dim=_DIM), _X, None),
  ("embedding", _EMBEDDING.Copy, _IDS, None),
  ("embedding-learned", lambda: _EMBEDDING.Copy().Set(positions="learned"), _IDS, None),
  ("embedding-bare", lambda: _EMBEDDING.Copy().Set(positions="none"), _IDS, None),
  (
    "embedding-dropout",
    lambda: _EMBEDDING.Copy().Set(dropout_keep_prob=0.8),
    _IDS,
    None,
  ),
  (
    "attention",
    lambda: MultiHeadAttention.Params().Set(dim=_DIM, num_heads=2),
    _X,
    None,
  ),
  ("feed-forward", _FEED_FORWARD.Copy, _X, None),
  ("feed-forward-gelu", lambda: _FEED_FORWARD.Copy().Set(activation="gelu"), _X, None),
  ("softmax-loss", _SOFTMAX.Copy, _X, _SIDE),
  (
    "softmax-loss-smooth-clipped-tied",
    lambda: _SOFTMAX.Copy().Set(
      label_smoothing=0.1, logits_abs_max=2.0, tied_to="embedding/w"
    ),
    _X,
    _SIDE,
  ),
  ("transformer-block", _BLOCK.Copy, _X, None),
  (
    "transformer-block-gelu-dropout",
    lambda: _BLOCK.Copy().Set(activation="gelu", dropout_keep_prob=0.8),
    _X,
    None,
  ),
  ("embedding-segments", _SEGMENT_EMBEDDING.Copy, _IDS, _POSITIONS),
  (
    "embedding-segments-learned",
    lambda: _SEGMENT_EMBEDDING.Copy().Set(positions="learned"),
    _IDS,
    _POSITIONS,
  ),
  (
    "attention-segments",
    lambda: SegmentAttention.Params().Set(dim=_DIM, num_heads=2),
    _X,
    _SEGMENTS,
  ),
  (
    "transformer-block-segments",
    lambda: SegmentTransformerBlock.Params().Set(dim=_DIM, ff_dim=_HIDDEN, num_heads=2),
    _X,
    _SEGMENTS,
  ),
]
