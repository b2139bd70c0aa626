"""What recipes for Cloud TPU have in common, whatever they train."""

from __future__ import annotations

from tfpipe import experiment
from tfpipe.params import Params


class OnCloudTpu(experiment.Experiment):
  """Goes in front of the experiment that it puts on a slice.

      @registry.Register
      class DigitsLarge(OnCloudTpu, digits.Large):
        SLICE, HARDWARE = "v5litepod-4", "tpu_v5e"

  Attributes:
    SLICE: accelerator type, as Cloud TPU names it.
    HARDWARE: name of its cores in tfpipe's table.
    NUM_REPLICAS: pipelines that it holds.
  """

  SLICE = ""
  HARDWARE = ""
  NUM_REPLICAS = 1

  def Model(self) -> Params:
    """A core for each partition of each pipeline."""
    p = super().Model()
    p.pipeline.Set(backend="spmd", schedule="1f1b", compute_dtype="bfloat16")
    p.pipeline.num_replicas = self.NUM_REPLICAS
    p.train.hardware = self.HARDWARE
    return p
