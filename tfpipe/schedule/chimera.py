"""Chimera: micro-batches go through the devices in both directions at once.

Each direction is a pipe with its own copy of the weights, and its waits are filled by
the other. Gradients of the copies are added before the update. Li and Hoefler,
"Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional
Pipelines" (2021), sections 3.1 (scheme), 3.5 (units in a row, forward doubling,
backward halving) and 3.6 (more than two pipes).
"""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.generate import SizeError, check_even, check_sizes, finish
from tfpipe.schedule.schedule import Schedule

__all__ = ["doubling", "halving", "schedule"]


def schedule(
  num_devices: int, num_micro_batches: int, remat: bool = False, *, num_pairs: int = 1
) -> Schedule:
  """Returns Chimera, one stage a device and pipe, units of D micro-batches in a row.

  With D devices and f pairs of pipes, in steps of one forward or backward, pipe 2i has
  stage s on device s + i D/f (mod D) and pipe 2i + 1 on device D - 1 - s + i D/f. The
  micro-batches of a unit are shared between the pipes, and the j-th of a pipe has its
  forward in step 2j + s and its backward in step 2j + 2D - 1 - s; no two meet.

  The weight gradients of a copy are in increasing order; those of a stage are summed
  copy by copy.

  Args:
    num_devices: D, even.
    num_micro_batches: micro-batches of a step, >= 1; best a multiple of D.
    remat: whether a stage recomputes its forward before each backward.
    num_pairs: f, a divisor of D/2. There are 2f copies of the weights.

  Raises ValueError for a number that is not allowed.
  """
  return _grid("chimera", num_devices, num_micro_batches, remat, num_pairs, size=1)


def doubling(
  num_devices: int, num_micro_batches: int, remat: bool = False, *, num_pairs: int = 1
) -> Schedule:
  """Returns Chimera with forward doubling: a forward takes two micro-batches.

  So it takes as long as a backward of one, and units of 2D micro-batches follow each
  other with hardly a wait, for up to 2D micro-batches in flight. Backwards of the two
  are D steps apart. Of an odd number of micro-batches the last is alone.

  Weight gradients are summed as in `schedule`, but not in increasing order: a copy has
  the first of all pairs of a unit before the second.

  Args and errors as of `schedule`; best is a multiple of 2D micro-batches.
  """
  return _grid(
    "chimera_doubling", num_devices, num_micro_batches, remat, num_pairs, size=2
  )


def halving(
  num_devices: int, num_micro_batches: int, remat: bool = False, *, num_pairs: int = 1
) -> Schedule:
  """Returns Chimera with backward halving: a backward takes half of what a forward did.

  Micro-batches are counted in those halves. The lists are then those of `doubling`: as
  many rows in a forward as without it, half as many in a backward.

  Args and errors as of `schedule`; num_micro_batches, of halves, must be even, best is
  a multiple of 2D.
  """
  name = "chimera_halving"
  check_even(name, "num_micro_batches", num_micro_batches)
  return _grid(name, num_devices, num_micro_batches, remat, num_pairs, size=2)


def _grid(
  name: str,
  num_devices: int,
  num_micro_batches: int,
  remat: bool,
  num_pairs: int,
  size: int,
) -> Schedule:
  """Returns the schedule with forwards of `size` micro-batches and backwards of one."""
  check_sizes(name, num_devices, num_micro_batches)
  check_even(name, "num_devices", num_devices)
  pairs = [f for f in range(1, num_devices) if num_devices // 2 % f == 0]
  if type(num_pairs) is not int or num_pairs not in pairs:
    divisors = ", ".join(map(str, pairs))
    allowed = f"one of {divisors}, the divisors of half of {num_devices} devices"
    raise SizeError(name, "num_pairs", num_pairs, allowed)
  placement = _placement(num_devices, num_pairs)
  slots: list[list[tuple[int, Action]]] = [[] for _ in range(num_devices)]
  unit = size * num_devices
  for start in range(0, num_micro_batches, unit):
    behind = min(start + unit, num_micro_batches)
    blocks = [range(m, min(m + size, behind)) for m in range(start, behind, size)]
    first = start // unit * (1 + size) * num_devices
    for pipe, devices in enumerate(placement):
      for j, block in enumerate(_share(blocks, pipe, len(placement))):
        for stage, device in enumerate(devices):
          step = first + 2 * j
          forward = Action("F", stage, block[0], pipe, len(block))
          slots[device].append((step + stage, forward))
          for m in block:
            step += num_devices
            backward = Action("BW", stage, m, pipe)
            slots[device].append((step + num_devices - 1 - stage, backward))
  lists = [[action for _, action in sorted(of_device)] for of_device in slots]
  return finish(name, num_micro_batches, placement, lists, remat)


def _placement(num_devices: int, num_pairs: int) -> list[tuple[int, ...]]:
  placement = []
  for pair in range(num_pairs):
    shift = pair * num_devices // num_pairs
    down = [(stage + shift) % num_devices for stage in range(num_devices)]
    up = [
      (num_devices - 1 - stage + shift) % num_devices for stage in range(num_devices)
    ]
    placement += [tuple(down), tuple(up)]
  return placement


def _share(blocks: list[range], pipe: int, num_pipes: int) -> list[range]:
  """Returns a pipe's blocks of a unit; the first pipes have one more if need be."""
  each, more = divmod(len(blocks), num_pipes)
  first = pipe * each + min(pipe, more)
  return blocks[first : first + each + (pipe < more)]
