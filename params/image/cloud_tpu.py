"""AmoebaNets of GPipe (arXiv:1811.06965) for named slices of Cloud TPU.

The models are the paper's; layers compute in bfloat16, and one program trains them, by
1F1B: it keeps K inputs where GPipe keeps M, in fewer ticks. The plan is at most six
tenths of a core's memory, for that program needs up to twice as much
(`tools/tpu_plan.py`). None has run on a TPU.
"""

from __future__ import annotations

from params.image import paper
from tfpipe import registry
from tfpipe.cloud_tpu import OnCloudTpu


@registry.Register
class AmoebaNetB18x512(OnCloudTpu, paper.AmoebaNetB18x512):
  """557M weights, ImageNet at 480×480, four chips of v5e."""

  SLICE, HARDWARE = "v5litepod-4", "tpu_v5e"


@registry.Register
class AmoebaNetD18x544(OnCloudTpu, paper.AmoebaNetD18x544):
  """Table 1's 542M weights, four chips of v6e."""

  SLICE, HARDWARE = "v6e-4", "tpu_v6e"
  NUM_PARTITIONS = 4


@registry.Register
class AmoebaNetD36x544(OnCloudTpu, paper.AmoebaNetD36x544):
  """Table 1's 1.05B weights, four chips of v6e."""

  SLICE, HARDWARE = "v6e-4", "tpu_v6e"


@registry.Register
class AmoebaNetD72x512(OnCloudTpu, paper.AmoebaNetD72x512):
  """Table 1's 1.8B weights, eight chips of v6e."""

  SLICE, HARDWARE = "v6e-8", "tpu_v6e"
