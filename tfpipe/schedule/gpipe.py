"""GPipe: all forwards, then all backwards.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism" (2019), section 2.3 and figure 2c.
"""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, backward, check_sizes, straight

__all__ = ["schedule"]


def schedule(num_stages: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns the schedule for equal or unequal stages, one a device.

  Backwards run in the order of the micro-batches, not in reverse as in the paper's
  figure: time and memory are the same, and weight gradients are then summed in the same
  order by all exact schedules, so that their results are equal to the last bit.

  Args:
    num_stages: stages and devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.

  Raises ValueError for a number below 1.
  """
  check_sizes(num_stages, num_micro_batches)
  lists = []
  for stage in range(num_stages):
    actions = [
      Action("F", stage, micro_batch) for micro_batch in range(num_micro_batches)
    ]
    for micro_batch in range(num_micro_batches):
      actions += backward(stage, micro_batch, remat)
    lists.append(actions)
  return straight("gpipe+R" if remat else "gpipe", num_micro_batches, lists)
