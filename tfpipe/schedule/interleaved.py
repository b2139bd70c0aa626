"""Interleaved 1F1B: several stages a device, micro-batches in groups.

The bubble of 1F1B divided by the stages per device, for that many times its transfers.
Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM" (2021), section 2.2.2 and figure 4; groups of any size as in Megatron-Core.
"""

from __future__ import annotations

from tfpipe.schedule.generate import (
  SizeError,
  Work,
  alternate,
  check_number,
  check_sizes,
  cut,
  finish,
  looped,
)
from tfpipe.schedule.schedule import Schedule

__all__ = ["in_groups", "schedule"]


def schedule(
  num_devices: int,
  num_micro_batches: int,
  remat: bool = False,
  *,
  stages_per_device: int = 2,
  group_size: int = 0,
) -> Schedule:
  """Returns the schedule; stage v K + d is the v-th of device d of K.

  A group of micro-batches goes through a device's first stage, then through its second,
  and so on, before the next group does. Backwards take the stages the other way round;
  those of one stage are in increasing order.

  Args:
    num_devices: devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.
    stages_per_device: >= 1; with 1 this is eager 1F1B.
    group_size: micro-batches of a group, from the number of devices to that of
      micro-batches, and such that the last group, too, is not smaller than the number
      of devices. 0 takes the smallest such size. Fewer micro-batches than devices are
      one group.

  Raises ValueError for a number below 1 and another group size.
  """
  return in_groups(
    "interleaved", num_devices, num_micro_batches, remat, stages_per_device, group_size
  )


def in_groups(
  name: str,
  num_devices: int,
  num_micro_batches: int,
  remat: bool,
  stages_per_device: int,
  group_size: int,
  split: bool = False,
) -> Schedule:
  """Returns the interleaved schedule, with input and weight gradients apart if split.

  Unsplit, a device runs two forwards ahead for each device behind it; split, it runs
  one, and a weight gradient is one backward late for each device before.

  Raises ValueError for a number below 1 and a group size that is not allowed.
  """
  check_sizes(name, num_devices, num_micro_batches)
  check_number(name, "stages_per_device", stages_per_device)
  # Fewer micro-batches than devices: the first of a group as large as the devices.
  padded = max(num_devices, num_micro_batches)
  group_size = _group_size(name, num_devices, num_micro_batches, padded, group_size)
  placement = looped(num_devices, stages_per_device)
  lists = []
  for device in range(num_devices):
    stages = range(device, len(placement), num_devices)
    forwards = _sequence(stages, padded, group_size)
    backwards = _sequence(stages[::-1], padded, group_size)
    ahead = num_devices - 1 - device
    warm_up = (stages_per_device - 1) * group_size + (ahead if split else 2 * ahead)
    delay = device if split else None
    actions = alternate(forwards, backwards, min(warm_up, len(forwards)), delay)
    lists.append(cut(actions, num_micro_batches))
  return finish(name, num_micro_batches, [placement], lists, remat)


def _sequence(stages: range, num_micro_batches: int, group_size: int) -> list[Work]:
  return [
    (stage, micro_batch)
    for start in range(0, num_micro_batches, group_size)
    for stage in stages
    for micro_batch in range(start, min(start + group_size, num_micro_batches))
  ]


def _group_size(
  name: str, num_devices: int, num_micro_batches: int, padded: int, size: int
) -> int:
  """Returns the size asked for, if it is allowed, or the default for 0."""
  allowed = [
    size
    for size in range(num_devices, padded + 1)
    if padded % size == 0 or padded % size >= num_devices
  ]
  if size == 0:
    return allowed[0]
  if num_micro_batches < num_devices:
    allowed = [num_micro_batches]
  if size not in allowed:
    sizes = f"{num_devices} devices and {num_micro_batches} micro-batches"
    raise SizeError(name, "group_size", size, f"one of {_listed(allowed)} with {sizes}")
  return padded if num_micro_batches < num_devices else size


def _listed(sizes: list[int]) -> str:
  """Lists sizes; of many, the first and the last."""
  texts = [str(size) for size in sizes]
  return ", ".join(texts if len(texts) <= 8 else [*texts[:6], "...", texts[-1]])
