"""Eager 1F1B: twice the forwards ahead of 1F1B, so that transfers hide.

Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models"
(2021), section 3 (its schedule B).
"""

from __future__ import annotations

from tfpipe.schedule.one_f_one_b import run_ahead
from tfpipe.schedule.schedule import Schedule

__all__ = ["schedule"]


def schedule(num_devices: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns the schedule, one stage a device; backwards in increasing order.

  As 1F1B, but a stage first runs two forwards for each stage behind it. With transfers
  that take no time it is as fast; 1F1B waits for each round trip of a micro-batch, this
  does not, for up to 2 (devices - device) - 1 micro-batches in flight.

  Args:
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.

  Raises ValueError for a number below 1.
  """
  return run_ahead("eager_1f1b", num_devices, num_micro_batches, remat, slope=2)
