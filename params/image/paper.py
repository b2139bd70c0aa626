"""GPipe's AmoebaNets (arXiv:1811.06965): the 557M model and tables 1, 2 and 3.

ImageNet-2012 is read through TensorFlow Datasets from a folder that the user prepares:
`--set input.data_dir=... --set eval_input.data_dir=...`.
"""

from __future__ import annotations

from models.amoebanet.network import AmoebaNet
from tfpipe import experiment, registry
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.input.tfds_input import TfdsImageInput
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.optimizers import Exponential, Learner, LinearWarmup, RMSProp
from tfpipe.params import Params

_IMAGENET_TRAIN_EXAMPLES = 1281167


class PaperAmoebaNet(experiment.Experiment):
  """What all have in common; random images, for the tables on memory and speed."""

  GENOTYPE = "amoebanet_d"
  NUM_CELLS = 18
  NUM_FILTERS = 256
  NUM_CLASSES = 1000
  IMAGE_SIZE = 224
  BATCH_SIZE = 128
  NUM_PARTITIONS = 1
  NUM_MICRO_BATCHES = 32
  REMAT = "cell"

  def Train(self) -> Params:
    """Random images."""
    return SyntheticImageInput.Params().Set(
      batch_size=self.BATCH_SIZE,
      image_size=self.IMAGE_SIZE,
      channels=3,
      num_classes=self.NUM_CLASSES,
    )

  def Task(self) -> Params:
    """Trains as the published TPU code of AmoebaNet does, but for the decay.

    RMSProp with epsilon 1, rate 0.015 after three epochs of warm-up, norms clipped to
    10; times 0.97 every two epochs as of Real et al. (arXiv:1802.01548, section 5).
    """
    steps_per_epoch = _IMAGENET_TRAIN_EXAMPLES / self.BATCH_SIZE
    decay = Exponential.Params().Set(
      decay_rate=0.97, decay_steps=2 * steps_per_epoch, staircase=True, floor=1e-4
    )
    warmup = LinearWarmup.Params().Set(
      warmup_steps=round(3 * steps_per_epoch), after=decay
    )
    return AmoebaNet.Params().Set(
      name=self.GENOTYPE,
      genotype=self.GENOTYPE,
      num_cells=self.NUM_CELLS,
      num_filters=self.NUM_FILTERS,
      num_classes=self.NUM_CLASSES,
      image_size=self.IMAGE_SIZE,
      norm=BatchNorm.Params().Set(decay=0.9997, epsilon=1e-3),
      learner=Learner.Params().Set(
        optimizer=RMSProp.Params().Set(decay=0.9, momentum=0.9, epsilon=1.0),
        learning_rate=0.015,
        lr_schedule=warmup,
        clip_gradient_norm_to_value=10.0,
        weight_decay_l2=4e-5,
        ema_decay=0.9999,
        ema_ramp=True,
      ),
    )

  def Model(self) -> Params:
    """Cut and scheduled as in the paper's tables."""
    p = super().Model()
    p.pipeline.Set(
      num_partitions=self.NUM_PARTITIONS,
      num_micro_batches=self.NUM_MICRO_BATCHES,
      remat=self.REMAT,
    )
    return p


@registry.Register
class AmoebaNetB18x512(PaperAmoebaNet):
  """557M weights, ImageNet at 480×480, four accelerators: 84.4 % top-1 in the paper."""

  GENOTYPE = "amoebanet_b"
  NUM_FILTERS = 512
  IMAGE_SIZE = 480
  NUM_PARTITIONS = 4

  def Train(self) -> Params:
    """Random crops of 10-100 % of the picture, mirrored in half of the cases."""
    return TfdsImageInput.Params().Set(
      dataset="imagenet2012",
      batch_size=self.BATCH_SIZE,
      image_size=self.IMAGE_SIZE,
      channels=3,
      num_classes=self.NUM_CLASSES,
      random_resized_crop=True,
      random_flip=True,
    )

  def Test(self) -> Params:
    """The middle 87.5 % of each picture of the validation split."""
    return TfdsImageInput.EvalParams().Set(
      dataset="imagenet2012",
      split="validation",
      batch_size=self.BATCH_SIZE,
      image_size=self.IMAGE_SIZE,
      channels=3,
      num_classes=self.NUM_CLASSES,
      central_crop=0.875,
    )

  def Task(self) -> Params:
    """With drop-path, growing over 100 epochs, and dropout before the logits."""
    steps = 100 * _IMAGENET_TRAIN_EXAMPLES // self.BATCH_SIZE
    return super().Task().Set(drop_path_keep=0.7, drop_path_steps=steps)


@registry.Register
class AmoebaNetD18x208(PaperAmoebaNet):
  """Table 1: 82M weights on one 8 GB accelerator, the most without GPipe."""

  NUM_FILTERS = 208
  NUM_MICRO_BATCHES = 1
  REMAT = "none"


@registry.Register
class AmoebaNetD18x416(PaperAmoebaNet):
  """Table 1: 318M weights on one accelerator, with re-materialization."""

  NUM_FILTERS = 416


@registry.Register
class AmoebaNetD18x544(PaperAmoebaNet):
  """Table 1: 542M weights on two accelerators."""

  NUM_FILTERS = 544
  NUM_PARTITIONS = 2


@registry.Register
class AmoebaNetD36x544(PaperAmoebaNet):
  """Table 1: 1.05B weights on four accelerators."""

  NUM_CELLS = 36
  NUM_FILTERS = 544
  NUM_PARTITIONS = 4


@registry.Register
class AmoebaNetD72x512(PaperAmoebaNet):
  """Table 1: 1.8B weights on eight accelerators."""

  NUM_CELLS = 72
  NUM_FILTERS = 512
  NUM_PARTITIONS = 8


@registry.Register
class AmoebaNetD18x256(PaperAmoebaNet):
  """Table 2: throughput on TPUs with K = 2, 4, 8 and M = 1, 4, 32."""

  NUM_PARTITIONS = 2


@registry.Register
class AmoebaNetD18x128(PaperAmoebaNet):
  """Table 3: throughput on P100s without NVLink, M = 32."""

  NUM_FILTERS = 128
  NUM_PARTITIONS = 2
