"""1F1B with a flush: a stage takes a backward as soon as it can, between forwards.

As fast as GPipe, with at most (number of stages - stage) micro-batches in flight on a
stage instead of all. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
Training" (2021), section 3.2 (PipeDream-Flush); Fan et al., "DAPPLE: A Pipelined Data
Parallel Approach for Training Large Models" (2021), section 3 (its schedule A).
"""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, backward, check_sizes, straight

__all__ = ["schedule"]


def schedule(num_stages: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns the schedule, one stage a device.

  A stage runs one forward for each stage behind it (or all, if there are fewer), then
  forward and backward in turn, then the backwards that are left.

  Args:
    num_stages: stages and devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1; fewer than stages are allowed.
    remat: whether a stage recomputes its forward before each backward.

  Raises ValueError for a number below 1.
  """
  check_sizes(num_stages, num_micro_batches)
  lists = []
  for stage in range(num_stages):
    forwards = [Action("F", stage, index) for index in range(num_micro_batches)]
    warm_up = min(num_micro_batches, num_stages - 1 - stage)
    actions = forwards[:warm_up]
    for micro_batch in range(num_micro_batches):
      actions += forwards[warm_up + micro_batch : warm_up + micro_batch + 1]
      actions += backward(stage, micro_batch, remat)
    lists.append(actions)
  return straight("1f1b+R" if remat else "1f1b", num_micro_batches, lists)
