"""GPipe: all forwards, then all backwards.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism" (2019), section 2.3 and figure 2c.
"""

from __future__ import annotations

from tfpipe.schedule.generate import alternate, check_sizes, finish, straight
from tfpipe.schedule.schedule import Schedule

__all__ = ["schedule"]


def schedule(num_devices: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns the schedule, one stage a device.

  Backwards run in increasing order of the micro-batches, not in reverse as in the
  paper's figure: time and memory are the same, and weight gradients are then summed in
  the same order by most exact schedules, so that their results are equal to the last
  bit.

  Args:
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.

  Raises ValueError for a number below 1.
  """
  check_sizes("gpipe", num_devices, num_micro_batches)
  lists = []
  for stage in range(num_devices):
    work = [(stage, micro_batch) for micro_batch in range(num_micro_batches)]
    lists.append(alternate(work, work, warm_up=num_micro_batches))
  return finish("gpipe", num_micro_batches, [straight(num_devices)], lists, remat)
