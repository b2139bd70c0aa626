"""The Transformers of GPipe's table 1 (arXiv:1811.06965): the largest that fit.

A decoder-only stack, width 2,048, feed-forward 8,192, 32 heads, 32,000 tokens,
sequences of 1,024, mini-batch of 32; 12 bytes a weight (RMSProp: weight and two slots).
"""

from __future__ import annotations

from models.transformer.language_model import TransformerLm
from tfpipe import experiment, registry
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.optimizers import Learner, RMSProp
from tfpipe.params import Params


class PaperTransformer(experiment.Experiment):
  """What the five models have in common."""

  NUM_LAYERS = 0
  NUM_PARTITIONS = 1
  VOCAB_SIZE = 32000
  SEQUENCE_LENGTH = 1024
  BATCH_SIZE = 32

  def Train(self) -> Params:
    """Random tokens: the table is about memory, not about a data set."""
    return SyntheticTextInput.Params().Set(
      batch_size=self.BATCH_SIZE,
      seq_len=self.SEQUENCE_LENGTH,
      vocab_size=self.VOCAB_SIZE,
    )

  def Task(self) -> Params:
    """Deep stacks are kept stable by smaller start values and clipped logits."""
    return TransformerLm.Params().Set(
      name="transformer",
      vocab_size=self.VOCAB_SIZE,
      sequence_length=self.SEQUENCE_LENGTH,
      num_layers=self.NUM_LAYERS,
      model_dim=2048,
      ff_dim=8192,
      num_heads=32,
      depth_scaled_init=True,
      logits_abs_max=20.0,
      learner=Learner.Params().Set(optimizer=RMSProp.Params().Set(momentum=0.9)),
    )

  def Model(self) -> Params:
    """One example a micro-batch."""
    p = super().Model()
    p.pipeline.Set(
      num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.BATCH_SIZE
    )
    return p


@registry.Register
class Transformer3(PaperTransformer):
  """282.2M weights on one accelerator, the most without re-materialization."""

  NUM_LAYERS = 3

  def Model(self) -> Params:
    """Keeps all activations."""
    p = super().Model()
    p.pipeline.remat = "none"
    return p


@registry.Register
class Transformer13(PaperTransformer):
  """785.8M weights on one accelerator, with re-materialization."""

  NUM_LAYERS = 13


@registry.Register
class Transformer103(PaperTransformer):
  """5.3B weights on 8 accelerators."""

  NUM_LAYERS = 103
  NUM_PARTITIONS = 8


@registry.Register
class Transformer415(PaperTransformer):
  """21.0B weights on 32 accelerators."""

  NUM_LAYERS = 415
  NUM_PARTITIONS = 32


@registry.Register
class Transformer1663(PaperTransformer):
  """83.9B weights on 128 accelerators.

  A mini-batch of 4 sequences for each accelerator, in place of the table's 32 in all:
  fewer micro-batches than accelerators would leave most of them idle most of the time.
  """

  NUM_LAYERS = 1663
  NUM_PARTITIONS = 128
  BATCH_SIZE = 512
