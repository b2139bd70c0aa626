"""Looped breadth-first: several stages a device, each done for all micro-batches.

Lamy-Poirier, "Breadth-First Pipeline Parallelism" (2022), section 4.
"""

from __future__ import annotations

from tfpipe.schedule.generate import (
  alternate,
  check_number,
  check_sizes,
  finish,
  looped,
)
from tfpipe.schedule.schedule import Schedule

__all__ = ["schedule"]


def schedule(
  num_devices: int,
  num_micro_batches: int,
  remat: bool = False,
  *,
  stages_per_device: int = 2,
) -> Schedule:
  """Returns the schedule; stage v K + d is the v-th of device d of K.

  The bubble of GPipe divided by the stages per device, at GPipe's memory: all forwards
  of a device's first stage, then of its second, and so on, and all backwards in exactly
  the reverse order. So weight gradients are summed from the last micro-batch to the
  first.

  Args:
    num_devices: devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.
    stages_per_device: >= 1.

  Raises ValueError for a number below 1.
  """
  name = "looped_bfs"
  check_sizes(name, num_devices, num_micro_batches)
  check_number(name, "stages_per_device", stages_per_device)
  placement = looped(num_devices, stages_per_device)
  lists = []
  for device in range(num_devices):
    work = [
      (stage, micro_batch)
      for stage in range(device, len(placement), num_devices)
      for micro_batch in range(num_micro_batches)
    ]
    lists.append(alternate(work, work[::-1], warm_up=len(work)))
  return finish(name, num_micro_batches, [placement], lists, remat)
