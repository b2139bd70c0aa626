"""The Transformer that benchmarks measure: nothing but layers, and plain SGD."""

from __future__ import annotations

from models.transformer.language_model import TransformerLm
from tfpipe import experiment, registry
from tfpipe.input.text_input import CharTextInput
from tfpipe.optimizers import SGD, Learner
from tfpipe.params import Params


@registry.Register
class Decoder(experiment.Experiment):
  """Eight layers of width 256 on 64 characters; benchmarks set other sizes."""

  NUM_LAYERS = 8
  MODEL_DIM = 256
  NUM_HEADS = 4
  VOCAB_SIZE = 128
  SEQUENCE_LENGTH = 64
  BATCH_SIZE = 16

  def Train(self) -> Params:
    """Two plays."""
    return CharTextInput.Params().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Task(self) -> Params:
    """No dropout, no positions, untied embeddings, a final norm."""
    return TransformerLm.Params().Set(
      name="decoder",
      vocab_size=self.VOCAB_SIZE,
      sequence_length=self.SEQUENCE_LENGTH,
      num_layers=self.NUM_LAYERS,
      model_dim=self.MODEL_DIM,
      ff_dim=4 * self.MODEL_DIM,
      num_heads=self.NUM_HEADS,
      positions="none",
      final_norm=True,
      learner=Learner.Params().Set(optimizer=SGD.Params(), learning_rate=0.01),
    )
