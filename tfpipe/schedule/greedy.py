"""Put the actions of a zero-bubble step in order, greedily, device by device in time.

Whenever a device is free it starts a forward or a backward whose input is there, or
fills the wait for the next one with a weight gradient. Nothing is looked ahead but
results that are already on their way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfpipe.schedule.action import Action, Kind
from tfpipe.timeline import Secs

__all__ = ["Problem", "Rule", "put_in_order"]


@dataclass(frozen=True)
class Problem:
  """What is to be put in order.

  Attributes:
    placement: the device of each stage.
    num_micro_batches: of the step.
    secs: times of F, B (with R if there is one) and W, by stage.
    transfer_secs: time on the way over each border, if it is between devices.
    forward_keeps: memory that each stage takes from F on, for one micro-batch.
    gradient_keeps: memory that it takes from B to W instead.
    memory_limit: most that a device may hold.
  """

  placement: Sequence[int]
  num_micro_batches: int
  secs: dict[str, Sequence[Secs]]
  transfer_secs: Sequence[Secs]
  forward_keeps: Sequence[float]
  gradient_keeps: Sequence[float]
  memory_limit: float

  def stages(self, device: int) -> list[int]:
    """Returns the stages of a device."""
    return [s for s, place in enumerate(self.placement) if place == device]

  def growth(self, stage: int) -> float:
    """Returns the memory that B takes beyond what the forward has."""
    return max(0, self.gradient_keeps[stage] - self.forward_keeps[stage])

  def room(self, stage: int) -> float:
    """Returns the memory that must be free for a forward of a stage.

    That is enough for the forwards of the same micro-batch on later stages of the
    device and for a backward, so that memory can be given back again.
    """
    stages = self.stages(self.placement[stage])
    later = sum(self.forward_keeps[s] for s in stages if s >= stage)
    return later + max(map(self.growth, stages))

  def least_memory(self, device: int) -> float:
    """Returns what a device needs for a single micro-batch."""
    return self.room(min(self.stages(device)))

  def allows(self, held: float) -> bool:
    """Returns whether a device may hold so much; sums of floats may be a bit off."""
    return held <= self.memory_limit * (1 + 1e-9)

  def fits(self, lists: Sequence[Sequence[Action]]) -> bool:
    """Returns whether no device ever holds more than the limit."""
    for actions in lists:
      held = 0
      for kind, stage, *_ in actions:
        forward, gradient = self.forward_keeps[stage], self.gradient_keeps[stage]
        if kind == "F":
          held += forward
        elif kind != "W":
          held += gradient - forward
        if not self.allows(held):
          return False
        if "W" in kind:
          held -= gradient
    return True


class Rule(NamedTuple):
  """What to do where it is not clear what is best.

  Attributes:
    run_ahead: whether forwards may delay a device's first backward.
    backward_first: whether, of a forward and a backward that are both there, the
      backward is always first; else they take turns.
    fill_short: whether to fill a wait shorter than a weight gradient on a device that
      the wait would make the worst.
    orders: for each device its forwards and backwards in a given order; then the first
      two fields do not matter. None to choose.
  """

  run_ahead: bool
  backward_first: bool
  fill_short: bool
  orders: Sequence[Sequence[Action]] | None = None


def put_in_order(problem: Problem, rule: Rule) -> list[list[Action]] | None:
  """Returns the list of each device; None if a given order does not fit the memory."""
  run = _Run(problem, rule)
  while run.events:
    now, device = heapq.heappop(run.events)
    # A device that is busy has another event for its end.
    if now >= run.devices[device].free:
      run.decide(device, now)
  num_actions = 3 * len(problem.placement) * problem.num_micro_batches
  lists = [device.actions for device in run.devices]
  return lists if sum(map(len, lists)) == num_actions else None


_WAITING: tuple[Kind, Kind] = ("F", "B")
"""Kinds that wait for other devices."""


class _Device:
  """A device, up to now."""

  def __init__(self, stages: Sequence[int], order: Sequence[Action] | None) -> None:
    self.stages = stages
    self.order = deque(order) if order is not None else None
    self.actions: list[Action] = []
    self.free: Secs = 0
    self.idle: Secs = 0
    self.held: float = 0
    # Stages of backwards whose weight gradient is to be done, in order.
    self.late: deque[int] = deque()
    self.last = "B"


class _Run:
  """The state of a greedy run.

  Attributes:
    devices: all of them.
    events: heap of (time, device) when there may be something to decide.
  """

  def __init__(self, problem: Problem, rule: Rule) -> None:
    self._problem = problem
    self._rule = rule
    num_stages = len(problem.placement)
    self._ready: dict[str, list[list[Secs]]] = {
      kind: [[] for _ in range(num_stages)] for kind in _WAITING
    }
    self._ready["F"][0] = [0] * problem.num_micro_batches
    self._done = {kind: [0] * num_stages for kind in "FBW"}
    self._worst: Secs = 0
    self.devices = []
    for device in range(1 + max(problem.placement)):
      order = rule.orders[device] if rule.orders is not None else None
      self.devices.append(_Device(problem.stages(device), order))
    self.events: list[tuple[Secs, int]] = [(0, d) for d in range(len(self.devices))]
    stages = range(num_stages)
    self._more = {
      "F": [problem.room(stage) for stage in stages],
      "B": [problem.growth(stage) for stage in stages],
    }

  def decide(self, number: int, now: Secs) -> None:
    """Starts a device's next action, or lets it wait for what arrives next."""
    device = self.devices[number]
    known: list[tuple[Secs, Kind, int]] = [
      (ready[self._done[kind][stage]], kind, stage)
      for kind in _WAITING
      for stage in device.stages
      if len(ready := self._ready[kind][stage]) > self._done[kind][stage]
    ]
    if device.order is not None:
      head = device.order[0][:2] if device.order else None
      known = [item for item in known if item[1:] == head]
    fitting: list[tuple[Secs, Kind, int]] = [
      (time, kind, stage)
      for time, kind, stage in known
      if self._problem.allows(device.held + self._more[kind][stage])
    ]
    there: list[tuple[Kind, int]] = [
      (kind, stage) for time, kind, stage in fitting if time <= now
    ]
    action = self._choose(device, there, fitting, now) if there else None
    if action is None:
      later = min((time for time, *_ in fitting if time > now), default=None)
      full = any(time <= now for time, *_ in known) and not there
      if device.late and (full or self._fills(device, now, later)):
        action = "W", device.late[0]
      elif later is not None:
        heapq.heappush(self.events, (later, number))
    if action is not None:
      self._do(number, now, *action)

  def _choose(
    self,
    device: _Device,
    there: list[tuple[Kind, int]],
    coming: list[tuple[Secs, Kind, int]],
    now: Secs,
  ) -> tuple[Kind, int] | None:
    """Returns the forward or backward to do now; None to wait for a backward."""
    forwards = [stage for kind, stage in there if kind == "F"]
    backwards = [stage for kind, stage in there if kind == "B"]
    # The stage nearest to the end of the model: it lets memory go first.
    if backwards and (self._rule.backward_first or device.last == "F" or not forwards):
      return "B", max(backwards)
    stage = max(forwards)
    if not self._rule.run_ahead and not any(self._done["B"][s] for s in device.stages):
      end = now + self._problem.secs["F"][stage]
      if any(kind == "B" and time < end for time, kind, _ in coming):
        return None
    return "F", stage

  def _fills(self, device: _Device, now: Secs, later: Secs | None) -> bool:
    """Returns whether to fill the wait until `later`, if that is known, with a W."""
    if later is None or later - now >= self._problem.secs["W"][device.late[0]]:
      return True
    return self._rule.fill_short and device.idle + later - now > self._worst

  def _do(self, number: int, now: Secs, kind: Kind, stage: int) -> None:
    device, problem = self.devices[number], self._problem
    if device.actions:
      device.idle += now - device.free
      self._worst = max(self._worst, device.idle)
    device.free = end = now + problem.secs[kind][stage]
    heapq.heappush(self.events, (end, number))
    device.actions.append(Action(kind, stage, self._done[kind][stage]))
    self._done[kind][stage] += 1
    forward_keeps = problem.forward_keeps[stage]
    gradient_keeps = problem.gradient_keeps[stage]
    if kind == "W":
      device.late.remove(stage)
      device.held -= gradient_keeps
      return
    device.last = kind
    if device.order is not None:
      device.order.popleft()
    if kind == "F":
      device.held += forward_keeps
      self._send("F", stage, stage + 1, end)
      if stage + 1 == len(problem.placement):
        self._ready["B"][stage].append(end)
    else:
      device.held += gradient_keeps - forward_keeps
      device.late.append(stage)
      self._send("B", stage, stage - 1, end)

  def _send(self, kind: str, stage: int, target: int, end: Secs) -> None:
    placement = self._problem.placement
    if not 0 <= target < len(placement):
      return
    if placement[stage] != placement[target]:
      end = end + self._problem.transfer_secs[min(stage, target)]
    self._ready[kind][target].append(end)
    heapq.heappush(self.events, (end, placement[target]))
