"""ZB-V: no bubble at the memory of 1F1B, with two stages a device.

Qi et al., "Zero Bubble Pipeline Parallelism" (2023), section 6.
"""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.generate import check_sizes, cut, finish, v_shaped
from tfpipe.schedule.schedule import Schedule
from tfpipe.schedule.v_shape import VList, check_two

__all__ = ["schedule"]


def schedule(
  num_devices: int,
  num_micro_batches: int,
  remat: bool = False,
  *,
  stages_per_device: int = 2,
) -> Schedule:
  """Returns the schedule; stages d and 2K - 1 - d are on device d of K.

  No device waits between its first and its last action if forward, input and weight
  gradient take equally long and there are at least 2K - 1 micro-batches. With fewer,
  devices do what they would do of so many and wait. Weight gradients of a stage are in
  increasing order.

  Args:
    num_devices: devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each input gradient.
    stages_per_device: must be 2.

  Raises ValueError for a number below 1 and other stages per device.
  """
  check_sizes("zb_v", num_devices, num_micro_batches)
  check_two("zb_v", stages_per_device)
  padded = max(num_micro_batches, 2 * num_devices - 1)
  lists = [
    cut(_list(num_devices, device, padded), num_micro_batches)
    for device in range(num_devices)
  ]
  return finish("zb_v", num_micro_batches, [v_shaped(num_devices)], lists, remat)


def _list(num_devices: int, device: int, num_micro_batches: int) -> list[Action]:
  made = VList(num_devices, device)
  behind = num_devices - device
  made.add("Fa", 2 * behind - 1)
  made.add("Fz Fa", device)
  made.add("Fz Bz Wz", behind)
  while made.left("F", "z", num_micro_batches):
    if made.left("F", "a", num_micro_batches):
      made.add("Fa")
    made.add("Ba Wa Fz Bz Wz")
  made.add("Ba Bz", device)
  made.add("Ba Wa", behind)
  made.add("Wz", made.left("W", "z", num_micro_batches))
  made.add("Wa", made.left("W", "a", num_micro_batches))
  return made.actions
