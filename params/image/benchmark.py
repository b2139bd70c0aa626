"""The AmoebaNet that benchmarks measure: nothing but cells, and plain SGD."""

from __future__ import annotations

from models.amoebanet.network import AmoebaNet
from tfpipe import experiment, registry
from tfpipe.input.image_input import EmbeddedImageInput
from tfpipe.optimizers import SGD, Learner
from tfpipe.params import Params


@registry.Register
class AmoebaNetD18x64(experiment.Experiment):
  """AmoebaNet-D (18, 64) on the shipped pictures, enlarged to 64×64."""

  NUM_CELLS = 18
  NUM_FILTERS = 64
  IMAGE_SIZE = 64
  BATCH_SIZE = 16

  def Train(self) -> Params:
    """Pictures of clothes, as they are."""
    return EmbeddedImageInput.Params().Set(
      batch_size=self.BATCH_SIZE, image_size=self.IMAGE_SIZE
    )

  def Task(self) -> Params:
    """No dropout."""
    return AmoebaNet.Params().Set(
      name="amoebanet_d",
      num_cells=self.NUM_CELLS,
      num_filters=self.NUM_FILTERS,
      num_classes=10,
      image_size=self.IMAGE_SIZE,
      channels=1,
      dropout_keep=1.0,
      learner=Learner.Params().Set(optimizer=SGD.Params(), learning_rate=0.01),
    )
