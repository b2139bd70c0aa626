"""Count the activations that a schedule keeps at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, NamedTuple

from tfpipe.schedule.action import Action
from tfpipe.schedule.graph import NONE
from tfpipe.schedule.schedule import Schedule

__all__ = ["InFlight", "held", "in_flight"]


class InFlight(NamedTuple):
  """Most activations each device holds, in activations of one device and micro-batch.

  A stage counts devices / stages: with V stages a device, one holds 1/V.

  Attributes:
    without_backward: forwards whose B or BW has not run ("F without B").
    kept: forwards (with recomputation: R) whose W or BW has not run ("kept to W"): the
      activations inside stages, if all are kept until the weight gradient.
  """

  without_backward: tuple[Fraction, ...]
  kept: tuple[Fraction, ...]


def in_flight(schedule: Schedule) -> InFlight:
  """Counts what a valid schedule holds at its peak, on each device."""
  unit = Fraction(schedule.num_devices, schedule.num_stages)
  without_backward, kept = (
    tuple(
      unit * max((count for _, count in held(schedule, device, closing)), default=0)
      for device in range(schedule.num_devices)
    )
    for closing in ("B", "W")
  )
  return InFlight(without_backward, kept)


def held(
  schedule: Schedule, device: int, closing: Literal["B", "W"]
) -> Iterator[tuple[Action, int]]:
  """Yields each action of a device that adds to what it holds, and how much it is then.

  Args:
    schedule: a valid one.
    device: which device.
    closing: the kind that ends it: with "B" forwards without a backward, with "W" the
      activations inside stages, which a recomputed forward does not keep; both in
      activations of one stage and micro-batch.
  """
  recomputed = schedule.graph.made["R"]
  count = 0
  for action in schedule.actions[device]:
    kind, stage, first, _, size, _ = action
    if closing in kind:
      count -= size
    elif kind == "F" and closing == "B":
      count += size
      yield action, count
    elif kind == "F":
      count += recomputed[stage][first : first + size].count(NONE)
      yield action, count
    elif kind == "R" and closing == "W":
      count += size
      yield action, count
