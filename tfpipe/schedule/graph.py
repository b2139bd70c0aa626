"""What must precede what: the actions of a schedule by number.

What an action waits for is said here, once, for all schedules. Each action is looked at
once, and what follows from the lists alone is left out, so that a schedule of several
100,000 actions is checked or simulated within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tfpipe.schedule.action import Action

if TYPE_CHECKING:
  from tfpipe.schedule.schedule import Schedule

__all__ = ["NONE", "Graph"]

NONE = -1
"""The number of an action that is not there."""


class Graph:
  """The actions of a schedule, numbered device after device, and their dependencies.

  - F needs the forward of the stage before.
  - R needs its own forward; not the gradient, so an idle device recomputes early.
  - B and BW need their own forward, its recomputation if there is one, and the input
    gradient of the stage behind.
  - W needs its input gradient.
  - U needs the weight gradients of its micro-batches on every copy of the stage.
  - All but U need the update that made the weights they use.

  Attributes:
    actions: of all devices, in the order of their lists.
    devices: for each action, in whose list it is.
    made: for F, R, B and W, by stage and micro-batch, the number of the action that
      does it, or NONE. A BW is found under B and under W.
    repeated: numbers of two actions of which the second does what the first has done,
      or None.
  """

  def __init__(self, schedule: Schedule) -> None:
    self._schedule = schedule
    self.actions = [action for actions in schedule.actions for action in actions]
    self.devices = [
      device for device, actions in enumerate(schedule.actions) for _ in actions
    ]
    self.made = {
      kind: [[NONE] * schedule.num_micro_batches for _ in range(schedule.num_stages)]
      for kind in "FRBW"
    }
    self.repeated: tuple[int, int] | None = None
    self._updates: dict[tuple[int, int, int], int] = {}
    for number, (kind, stage, first, pipe, size, _) in enumerate(self.actions):
      if kind == "U":
        self._updates[stage, first, pipe] = number
        continue
      for letter in kind:
        row = self.made[letter][stage]
        for micro_batch in range(first, first + size):
          if row[micro_batch] != NONE:
            self.repeated = row[micro_batch], number
          row[micro_batch] = number

  @cached_property
  def _reads(self) -> dict[str, list[list[list[int]]]]:
    """For each kind and stage, the rows of `made` that have what is needed."""
    return {
      kind: [
        [self._row(*source) for source in self._sources(kind, stage)]
        for stage in range(self._schedule.num_stages)
      ]
      for kind in ("F", "R", "B", "W", "BW", "U")
    }

  def _sources(self, kind: str, stage: int) -> list[tuple[str, int]]:
    """Lists the kinds of work needed, and of which stages."""
    if kind == "F":
      return [("F", stage - 1)] if stage else []
    if kind in ("R", "W", "U"):
      return [({"R": "F", "W": "B", "U": "W"}[kind], stage)]
    sources = [("F", stage)]
    if max(self.made["R"][stage]) != NONE:
      sources.append(("R", stage))
    if stage + 1 < self._schedule.num_stages:
      sources.append(("B", stage + 1))
    return sources

  def _row(self, kind: str, stage: int) -> list[int]:
    row = self.made[kind][stage]
    if kind != "R":
      return row
    # A micro-batch that is not recomputed has its forward instead.
    forwards = self.made["F"][stage]
    return [r if r != NONE else f for r, f in zip(row, forwards, strict=True)]

  def needs(self, action: Action) -> list[int]:
    """Lists what an action needs; with repeats if that covers several micro-batches.

    Raises ValueError, naming both, if no device does what is needed.
    """
    kind, stage, first, pipe, size, version = action
    rows = self._reads[kind][stage]
    if kind == "U":
      covered = self._schedule.micro_batches_of(first)
      found = rows[0][covered.start : covered.stop]
    elif size == 1:
      found = [row[first] for row in rows]
    else:
      found = [number for row in rows for number in row[first : first + size]]
    if version:
      found.append(self._updates.get((stage, version - 1, pipe), NONE))
    if NONE in found:
      raise ValueError(
        f"{self._schedule.name}: {action} needs {self._missing(action)}, which no "
        "device does"
      )
    return found

  def _missing(self, action: Action) -> str:
    covered = action.micro_batches
    if action.kind == "U":
      covered = self._schedule.micro_batches_of(action.micro_batch)
    for kind, stage in self._sources(action.kind, action.stage):
      for micro_batch in covered:
        if self._row(kind, stage)[micro_batch] == NONE:
          return f"{kind} of stage {stage}, micro-batch {micro_batch}"
    return str(Action("U", action.stage, action.version - 1, action.pipe))

  @cached_property
  def waits(self) -> list[tuple[int, ...]]:
    """For each action what it needs, but for what stands before it in its own list.

    Those are actions of other devices and, in a list that is not sound, later ones.
    """
    devices, reads, result = self.devices, self._reads, []
    for number, action in enumerate(self.actions):
      device = devices[number]
      kind, stage, first, _, size, version = action
      if size != 1 or version or kind == "U":
        needed = self.needs(action)
      else:  # one of the many simple ones
        needed = [row[first] for row in reads[kind][stage]]
        if NONE in needed:
          self.needs(action)  # says what is missing
      # Most are empty, and tuples of numbers cost the garbage collector nothing.
      result.append(tuple([n for n in needed if devices[n] != device or n > number]))
    return result

  @cached_property
  def order(self) -> list[int]:
    """All actions in one order that fits every list and dependency.

    Round after round, each device in turn does its next action if what it needs is
    done. So the order is the same each time, and the devices' work spread evenly in it.

    Raises ValueError, naming the action at which each device is blocked, if devices
    wait for each other for ever.
    """
    waits, order = self.waits, []
    done = bytearray(len(self.actions))
    heads, ends = [], []
    for actions in self._schedule.actions:
      heads.append(ends[-1] if ends else 0)
      ends.append(heads[-1] + len(actions))
    active = list(range(len(heads)))
    while active:
      active = [device for device in active if heads[device] < ends[device]]
      before = len(order)
      for device in active:
        number = heads[device]
        for needed in waits[number]:
          if not done[needed]:
            break
        else:
          done[number] = True
          order.append(number)
          heads[device] += 1
      if active and len(order) == before:
        raise ValueError(self._blocked([heads[device] for device in active], done))
    return order

  def _blocked(self, heads: Iterable[int], done: Sequence[int]) -> str:
    texts = []
    for number in heads:
      needed = next(n for n in self.waits[number] if not done[n])
      texts.append(
        f"device {self.devices[number]} does not get past {self.actions[number]}, "
        f"which needs {self.actions[needed]}"
      )
    return f"{self._schedule.name}: cyclic wait: {'; '.join(texts)}"
