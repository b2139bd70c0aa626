"""Character models of Shakespeare's plays: two to train on, a third to test on."""

from __future__ import annotations

from models.transformer.language_model import TransformerLm
from tfpipe import experiment, registry
from tfpipe.input.text_input import VOCAB_SIZE, CharTextInput
from tfpipe.optimizers import Adam, Learner
from tfpipe.optimizers.learning_rate import Cosine, LinearWarmup
from tfpipe.params import Params


@registry.Register
class Char(experiment.Experiment):
  """Four layers of width 128; minutes on two cores."""

  NUM_LAYERS = 4
  MODEL_DIM = 128
  NUM_HEADS = 4
  SEQUENCE_LENGTH = 128
  BATCH_SIZE = 32
  MAX_STEPS = 600

  def Train(self) -> Params:
    """Two plays, cut anew every epoch."""
    return CharTextInput.Params().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Test(self) -> Params:
    """A whole other play."""
    return CharTextInput.EvalParams().Set(
      batch_size=self.BATCH_SIZE, seq_len=self.SEQUENCE_LENGTH
    )

  def Task(self) -> Params:
    """A decoder-only Transformer with tied embeddings and a cosine learning rate."""
    decay = Cosine.Params().Set(total_steps=self.MAX_STEPS)
    return TransformerLm.Params().Set(
      name="char_lm",
      vocab_size=VOCAB_SIZE,
      sequence_length=self.SEQUENCE_LENGTH,
      num_layers=self.NUM_LAYERS,
      model_dim=self.MODEL_DIM,
      ff_dim=4 * self.MODEL_DIM,
      num_heads=self.NUM_HEADS,
      dropout_keep_prob=0.9,
      depth_scaled_init=True,
      tie_embeddings=True,
      learner=Learner.Params().Set(
        optimizer=Adam.Params(),
        learning_rate=3e-3,
        lr_schedule=LinearWarmup.Params().Set(warmup_steps=50, after=decay),
        clip_gradient_norm_to_value=1.0,
      ),
    )

  def Model(self) -> Params:
    """Two partitions, eight micro-batches."""
    p = super().Model()
    p.pipeline.Set(num_partitions=2, num_micro_batches=8)
    p.train.Set(max_steps=self.MAX_STEPS)
    return p
