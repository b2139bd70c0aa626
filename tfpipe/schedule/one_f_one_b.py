"""1F1B with a flush: a stage takes a backward as soon as it can, between forwards.

As fast as GPipe, with at most (number of devices - device) micro-batches in flight on a
device instead of all. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
Training" (2021), section 3.2 (PipeDream-Flush); Fan et al., "DAPPLE: A Pipelined Data
Parallel Approach for Training Large Models" (2021), section 3 (its schedule A).
"""

from __future__ import annotations

from tfpipe.schedule.generate import alternate, check_sizes, finish, straight
from tfpipe.schedule.schedule import Schedule

__all__ = ["run_ahead", "schedule"]


def schedule(num_devices: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns the schedule, one stage a device; backwards in increasing order.

  A stage runs one forward for each stage behind it (or all, if there are fewer), then
  forward and backward in turn, then the backwards that are left.

  Args:
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1; fewer than devices are allowed.
    remat: whether a stage recomputes its forward before each backward.

  Raises ValueError for a number below 1.
  """
  return run_ahead("1f1b", num_devices, num_micro_batches, remat, slope=1)


def run_ahead(
  name: str,
  num_devices: int,
  num_micro_batches: int,
  remat: bool,
  slope: int,
  split: bool = False,
) -> Schedule:
  """Returns the schedule of the family that 1F1B is of, one stage a device.

  Args:
    name: its name.
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.
    slope: forwards that a device runs ahead for each device behind it.
    split: whether input and weight gradient are two actions. A weight gradient is then
      `slope` micro-batches late for each device before, so that run-ahead forwards and
      late weight gradients together are equally many on all devices.

  Raises ValueError for a number below 1.
  """
  check_sizes(name, num_devices, num_micro_batches)
  lists = []
  for stage in range(num_devices):
    work = [(stage, micro_batch) for micro_batch in range(num_micro_batches)]
    warm_up = min(num_micro_batches, slope * (num_devices - 1 - stage))
    lists.append(alternate(work, work, warm_up, slope * stage if split else None))
  return finish(name, num_micro_batches, [straight(num_devices)], lists, remat)
