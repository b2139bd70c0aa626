"""A schedule as a table of ticks, for devices that exchange all at the same time.

Where every device runs the same program (Cloud TPU), they meet once a tick: what a
stage gives in one tick, its neighbor has in the next, and there is no queue in between.
In a tick a stage does at most one forward and, after it, one backward.

So the ticks of one micro-batch follow from two: stage s runs its forward at f + s and
its backward at b + (K - 1 - s). The order of each device's list says how these may lie
to each other; the smallest that fit are the table.
"""

from __future__ import annotations

import dataclasses
import itertools

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule
from tfpipe.schedule.validate import validate

__all__ = ["IDLE", "Ticks", "table"]

IDLE = -1
"""Stands for a micro-batch where a stage does nothing."""

_Row = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Ticks:
  """What each stage does in each tick.

  Attributes:
    name: of the schedule.
    forward: for each tick and stage the micro-batch of its forward, or IDLE.
    backward: for each tick and stage that of its backward, after the forward, or IDLE.
    recomputes: whether a backward begins with the recomputation of its forward.
    num_slots: inputs that a stage keeps at once, at most; micro-batch m is kept in slot
      m mod num_slots.
  """

  name: str
  forward: tuple[_Row, ...]
  backward: tuple[_Row, ...]
  recomputes: bool
  num_slots: int

  @property
  def num_ticks(self) -> int:
    """Number of ticks."""
    return len(self.forward)


def table(schedule: Schedule) -> Ticks:
  """Lays a schedule out in ticks, each action as early as the order allows.

  Args:
    schedule: a sound one, with one stage on each device.

  Raises:
    ValueError: it isn't sound, or its ticks do not line up; the message names it.
  """
  validate(schedule)
  lists = [_works(schedule, actions) for actions in schedule.actions]
  recomputes = _recomputes(schedule)
  starts = _starts(schedule, lists)
  last = schedule.num_stages - 1
  count = 1 + last + max(starts.values())
  tables: dict[str, list[list[int]]] = {
    kind: [[IDLE] * (last + 1) for _ in range(count)] for kind in ("F", "BW")
  }
  for (kind, m), start in starts.items():
    for stage in range(last + 1):
      tick = start + (stage if kind == "F" else last - stage)
      tables[kind][tick][stage] = m
  forward, backward = (tuple(map(tuple, tables[kind])) for kind in ("F", "BW"))
  slots = _num_slots(schedule, starts)
  return Ticks(schedule.name, forward, backward, recomputes, slots)


def _refuse(schedule: Schedule, reason: str) -> ValueError:
  return ValueError(
    f"schedule {schedule.name} does not line up in ticks, in which each stage hands on "
    f"what it did to its neighbor: {reason}; gpipe, 1f1b and eager_1f1b do"
  )


def _works(schedule: Schedule, actions: tuple[Action, ...]) -> list[Action]:
  """Gives the forwards and backwards of a device; refuses what a tick cannot hold."""
  if schedule.placement != (tuple(range(schedule.num_stages)),):
    raise _refuse(schedule, "stage s must be on device s, once")
  if not schedule.exact or schedule.num_updates != 1:
    raise _refuse(schedule, "it must be exact, with one update at its end")
  for action in actions:
    if action.kind in ("B", "W") or action.size != 1:
      raise _refuse(schedule, f"{action} is no part of a tick")
  return [action for action in actions if action.kind in ("F", "BW")]


def _recomputes(schedule: Schedule) -> bool:
  """Says whether all backwards begin with a recomputation; refuses other mixtures."""
  found = set()
  for actions in schedule.actions:
    before = [None, *actions]
    for previous, action in zip(before, actions, strict=False):
      if action.kind == "BW":
        found.add(previous is not None and previous == action._replace(kind="R"))
      elif previous is not None and previous.kind == "R":
        raise _refuse(schedule, f"{previous} must be right before its backward")
  if len(found) != 1:
    raise _refuse(schedule, "either all or no backwards must recompute")
  return found.pop()


def _starts(schedule: Schedule, lists: list[list[Action]]) -> dict[tuple, int]:
  """Finds the longest path through what must be in order.

  Returns:
    by kind and micro-batch, the tick of its forward on the first stage, and that of its
    backward on the last.
  """
  last = schedule.num_stages - 1
  edges: dict[tuple, int] = {}
  for stage, works in enumerate(lists):
    lead = {"F": stage, "BW": last - stage}
    for one, other in itertools.pairwise(works):
      apart = 0 if (one.kind, other.kind) == ("F", "BW") else 1
      apart += lead[one.kind] - lead[other.kind]
      pair = (one.kind, one.micro_batch), (other.kind, other.micro_batch)
      edges[pair] = max(apart, edges.get(pair, apart))
  starts = {(a.kind, a.micro_batch): 0 for a in lists[0]}
  for _ in range(len(starts) + 1):
    moved = False
    for (one, other), apart in edges.items():
      if starts[one] + apart > starts[other]:
        starts[other], moved = starts[one] + apart, True
    if not moved:
      return starts
  raise _refuse(schedule, "its devices' orders contradict each other")


def _num_slots(schedule: Schedule, starts: dict[tuple, int]) -> int:
  """Finds the fewest slots such that no input is written over before it is read."""
  number, last = schedule.num_micro_batches, schedule.num_stages - 1
  # Stage 0 keeps longest, and each other for a part of that time.
  lives = [(starts["F", m], starts["BW", m] + last) for m in range(number)]
  for slots in range(1, number):
    pairs = (
      (lives[m], lives[other])
      for m in range(number)
      for other in range(m + slots, number, slots)
    )
    if all(a[1] < b[0] or b[1] < a[0] for a, b in pairs):
      return slots
  return number
