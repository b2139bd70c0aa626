"""Transformers of GPipe (arXiv:1811.06965) for named slices of Cloud TPU.

As `params.image.cloud_tpu`, in memory too; none has run on a TPU.
"""

from __future__ import annotations

from params.lm import paper
from tfpipe import registry
from tfpipe.cloud_tpu import OnCloudTpu


@registry.Register
class Transformer13(OnCloudTpu, paper.Transformer13):
  """785.8M weights, four chips of v5e."""

  SLICE, HARDWARE = "v5litepod-4", "tpu_v5e"
  NUM_PARTITIONS = 4


@registry.Register
class Transformer13R4(OnCloudTpu, paper.Transformer13):
  """Four pipelines of it, 32 sequences each, 16 chips of v5e."""

  SLICE, HARDWARE = "v5litepod-16", "tpu_v5e"
  NUM_PARTITIONS = NUM_REPLICAS = 4
  BATCH_SIZE = 128


@registry.Register
class Transformer103(OnCloudTpu, paper.Transformer103):
  """5.3B weights, eight chips of v6e."""

  SLICE, HARDWARE = "v6e-8", "tpu_v6e"


@registry.Register
class Transformer415(OnCloudTpu, paper.Transformer415):
  """21.0B weights, 16 chips of v5p, which are 32 cores in the slice's name."""

  SLICE, HARDWARE = "v5p-32", "tpu_v5p"
  NUM_PARTITIONS = 16


@registry.Register
class Transformer1663(OnCloudTpu, paper.Transformer1663):
  """83.9B weights, 64 chips of v5p."""

  SLICE, HARDWARE = "v5p-128", "tpu_v5p"
  NUM_PARTITIONS = 64
