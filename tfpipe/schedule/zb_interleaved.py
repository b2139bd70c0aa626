"""Interleaved 1F1B with input and weight gradients apart.

Interleaving after Narayanan et al., "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM" (2021), section 2.2.2; the split after Qi et al., "Zero
Bubble Pipeline Parallelism" (2023), section 2.
"""

from __future__ import annotations

from tfpipe.schedule.interleaved import in_groups
from tfpipe.schedule.schedule import Schedule

__all__ = ["schedule"]


def schedule(
  num_devices: int,
  num_micro_batches: int,
  remat: bool = False,
  *,
  stages_per_device: int = 2,
  group_size: int = 0,
) -> Schedule:
  """Returns the schedule; stage v K + d is the v-th of device d of K.

  As `interleaved`, but a device runs half as far ahead and its weight gradients, as
  many late as there are devices before it, fill the waits. Those of one stage are in
  increasing order.

  Args:
    num_devices: devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each input gradient.
    stages_per_device: >= 1; with 1 this is ZB-H1.
    group_size: as of `interleaved`.

  Raises ValueError for a number below 1 and another group size.
  """
  return in_groups(
    "zb_interleaved",
    num_devices,
    num_micro_batches,
    remat,
    stages_per_device,
    group_size,
    split=True,
  )
