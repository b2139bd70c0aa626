"""DualPipeV: a forward of one half of the model beside a backward of the other.

Each pair of a forward and a backward in the middle of a step can run at once, the
transfers of one behind the work of the other. DeepSeek-AI, "DeepSeek-V3 Technical
Report" (2024), section 3.2.1 (DualPipe), in the V-shaped form of its published code.
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

  The two actions of a pair stand one behind the other, the forward first. Only the
  first and the last backwards of a device have their weight gradients apart. Weight
  gradients of a stage are in increasing order. With fewer micro-batches than 2K,
  devices do what they would do of so many, and wait.

  Args:
    num_devices: devices, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each backward.
    stages_per_device: must be 2.

  Raises ValueError for a number below 1 and other stages per device.
  """
  check_sizes("dualpipe_v", num_devices, num_micro_batches)
  check_two("dualpipe_v", stages_per_device)
  padded = max(num_micro_batches, 2 * num_devices)
  lists = [
    cut(_list(num_devices, device, padded), num_micro_batches)
    for device in range(num_devices)
  ]
  return finish("dualpipe_v", num_micro_batches, [v_shaped(num_devices)], lists, remat)


def _list(num_devices: int, device: int, num_micro_batches: int) -> list[Action]:
  made = VList(num_devices, device)
  behind, before = num_devices - 1 - device, device + 1
  made.add("Fa", 2 * behind)
  made.add("Fa Fz", before)
  made.add("Bz Wz Fz", behind)
  made.add("Fa BWz Fz BWa", num_micro_batches - 2 * num_devices + before)
  made.add("BWz Fz BWa", behind)
  # From halfway through these backwards weight gradients wait, to fill the end.
  for index in range(2 * before):
    made.add(("BW" if index < before else "B") + "za"[index % 2])
  made.add("w Ba", behind)
  made.add("w", before)
  return made.actions
