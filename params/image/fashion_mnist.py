"""AmoebaNet on Fashion-MNIST: 28×28 grey pictures of clothes, ten classes."""

from __future__ import annotations

from models.amoebanet.network import AmoebaNet
from tfpipe import experiment, registry
from tfpipe.input.image_input import EmbeddedImageInput
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.optimizers import Cosine, Learner, LinearWarmup, Momentum
from tfpipe.params import Params


@registry.Register
class AmoebaNetTiny(experiment.Experiment):
  """AmoebaNet-D (3, 16) on the shipped 2,000 + 500 pictures; minutes on two cores."""

  NUM_CELLS = 3
  NUM_FILTERS = 16
  BATCH_SIZE = 64
  MAX_STEPS = 800

  def Train(self) -> Params:
    """2,000 pictures, shifted and mirrored at random."""
    return EmbeddedImageInput.Params().Set(
      batch_size=self.BATCH_SIZE, random_flip=True, random_crop_padding=2
    )

  def Test(self) -> Params:
    """500 other pictures, as they are."""
    return EmbeddedImageInput.EvalParams().Set(batch_size=self.BATCH_SIZE)

  def Task(self) -> Params:
    """A small stem, because the pictures are small already."""
    decay = Cosine.Params().Set(total_steps=self.MAX_STEPS)
    return AmoebaNet.Params().Set(
      name="amoebanet_d",
      genotype="amoebanet_d",
      num_cells=self.NUM_CELLS,
      num_filters=self.NUM_FILTERS,
      num_classes=10,
      image_size=28,
      channels=1,
      stem="small",
      stem_filters=16,
      norm=BatchNorm.Params().Set(decay=0.95),
      dropout_keep=0.8,
      learner=Learner.Params().Set(
        optimizer=Momentum.Params().Set(nesterov=True),
        learning_rate=0.1,
        lr_schedule=LinearWarmup.Params().Set(warmup_steps=30, after=decay),
        weight_decay_l2=1e-4,
        clip_gradient_norm_to_value=5.0,
      ),
    )

  def Model(self) -> Params:
    """Two partitions, four micro-batches."""
    p = super().Model()
    p.pipeline.Set(num_partitions=2, num_micro_batches=4)
    p.train.Set(max_steps=self.MAX_STEPS)
    return p
