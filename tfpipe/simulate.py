"""Run a schedule on given times, without tensors: how long it takes and why.

Each device does its list in order, each action as soon as what it needs has arrived.
What crosses devices arrives later by the transfer time, which occupies neither device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule
from tfpipe.text_files import MOST
from tfpipe.timeline import Secs, Span, Timeline

__all__ = ["StageTimes", "per_border", "period", "period_waste", "simulate"]


@dataclass(frozen=True)
class StageTimes:
  """How long each stage takes for one micro-batch; an action of size n takes n times.

  Attributes:
    forward: F of each stage.
    input_gradient: B of each stage.
    weight_gradient: W of each stage.
    recompute: R of each stage; as forward unless given.
    update: U of each stage, with the exchange of gradients and weights between its
      copies; 0 unless given. Copies in pipes but the first have no update of their own.
    backward: BW of each stage; as B and W together unless given.

  Raises ValueError if there is not one time for each stage, or one is negative or not
  finite.
  """

  forward: Sequence[Secs]
  input_gradient: Sequence[Secs]
  weight_gradient: Sequence[Secs]
  recompute: Sequence[Secs] = ()
  update: Sequence[Secs] = ()
  backward: Sequence[Secs] = ()

  def __post_init__(self) -> None:
    object.__setattr__(self, "recompute", self.recompute or self.forward)
    object.__setattr__(self, "update", self.update or [0] * len(self.forward))
    # Of other lengths, they are refused below.
    both = zip(self.input_gradient, self.weight_gradient, strict=False)
    object.__setattr__(self, "backward", self.backward or [b + w for b, w in both])
    for name, times in list(vars(self).items()):
      _check_times(name, times, len(self.forward))
      object.__setattr__(self, name, tuple(times))

  @classmethod
  def equal(
    cls,
    num_stages: int,
    forward: Secs = 1,
    input_gradient: Secs = 1,
    weight_gradient: Secs = 1,
  ) -> StageTimes:
    """Returns the same times for every stage; as they are, a backward takes 2."""
    return cls(
      [forward] * num_stages,
      [input_gradient] * num_stages,
      [weight_gradient] * num_stages,
    )

  @cached_property
  def by_kind(self) -> dict[str, Sequence[Secs]]:
    """The times of each kind of action, by stage."""
    return {
      "F": self.forward,
      "R": self.recompute,
      "B": self.input_gradient,
      "W": self.weight_gradient,
      "BW": self.backward,
      "U": self.update,
    }

  def secs(self, action: Action) -> Secs:
    """Returns how long an action takes."""
    if action.kind == "U" and action.pipe:
      return 0
    return action.size * self.by_kind[action.kind][action.stage]


def simulate(
  schedule: Schedule,
  times: StageTimes,
  transfer_secs: Secs | Sequence[Secs] = 0,
  link_secs: Secs | Sequence[Secs] = 0,
) -> Timeline:
  """Returns the timeline of a valid schedule, from an idle start.

  Updates that come at once (`Schedule.updates_at_once`) start on all devices when the
  last gradient is there, wherever they stand in the lists. If none takes time, they
  stay where they stand.
  Activations cross the border between two stages forward, gradients back, each one
  link_secs + transfer_secs after it is there if the link is free, else later.

  Args:
    schedule: what to run; `validate` it first if it does not come from a generator.
    times: how long stages take, in any unit; ints and Fractions give exact results.
    transfer_secs: how long activations or gradients of one micro-batch are on the way
      between stages on different devices, in addition to link_secs: the latency. One
      number, or one for each border.
    link_secs: how long they occupy the link between the two devices: bytes over
      bandwidth. A link has its own way for each direction, and on it one transfer waits
      for the other. One number, or one for each border.

  Raises ValueError if there is not one time for each stage and border, and for a
  schedule that waits for ever.
  """
  at_once = any(times.update) and schedule.updates_at_once
  others = replace(times, update=()) if at_once else times
  starts, ends = _Run(schedule, others, transfer_secs, link_secs).step()
  devices, actions = schedule.graph.devices, schedule.graph.actions
  if at_once:
    _update_at_once(schedule, times, starts, ends)
  new = tuple.__new__  # as Span(...), at half the time
  return Timeline(
    tuple(
      [
        new(Span, (devices[n], actions[n], starts[n], ends[n]))
        for n in schedule.graph.order
      ]
    ),
    schedule.num_devices,
  )


def period(
  schedule: Schedule,
  times: StageTimes,
  transfer_secs: Secs | Sequence[Secs] = 0,
  link_secs: Secs | Sequence[Secs] = 0,
) -> Secs:
  """Returns the time of a step in a long run without a barrier between steps.

  Each device starts its next step when its list is done, whatever the others do. Steps
  are simulated until all devices and links take equally long from one to the next, as
  they then do for ever. Should they not within 64, the mean of the last half is
  returned.

  Args and errors as of `simulate`.
  """
  run = _Run(schedule, times, transfer_secs, link_secs)
  history = [run.state()]
  for _ in range(_MOST_STEPS):
    run.step()
    history.append(run.state())
    lengths = [new - old for old, new in zip(*history[-2:], strict=True)]
    if all(math.isclose(length, lengths[0], rel_tol=1e-12) for length in lengths):
      return max(lengths)
  half = _MOST_STEPS // 2
  return (max(history[-1]) - max(history[half])) / (_MOST_STEPS - half)


_MOST_STEPS = 64


def period_waste(
  schedule: Schedule,
  times: StageTimes,
  transfer_secs: Secs | Sequence[Secs] = 0,
  link_secs: Secs | Sequence[Secs] = 0,
) -> float:
  """Returns the share of devices x period not spent on work; recomputation is none.

  Args and errors as of `simulate`.
  """
  secs = period(schedule, times, transfer_secs, link_secs)
  work = sum(times.secs(a) for a in schedule.graph.actions if a.kind != "R")
  return float(1 - work / (schedule.num_devices * secs)) if secs else 0.0


def _update_at_once(
  schedule: Schedule, times: StageTimes, starts: list[Secs], ends: list[Secs]
) -> None:
  """Puts updates, which have taken no time so far, behind the end of all else."""
  actions, devices = schedule.graph.actions, schedule.graph.devices
  free = [max(ends)] * schedule.num_devices
  for number in schedule.graph.order:
    if actions[number].kind == "U":
      starts[number] = free[devices[number]]
      free[devices[number]] += times.secs(actions[number])
      ends[number] = free[devices[number]]


_Crossing = tuple[tuple[int, int], Secs, Secs]
"""A link, which is its two devices, from and to; and two times on it."""


class _Run:
  """One step after the other of a schedule, each device going on when it is free."""

  def __init__(
    self,
    schedule: Schedule,
    times: StageTimes,
    transfer_secs: Secs | Sequence[Secs],
    link_secs: Secs | Sequence[Secs],
  ) -> None:
    if len(times.forward) != schedule.num_stages:
      raise ValueError(
        f"times are for {len(times.forward)} stages, but schedule {schedule.name} has "
        f"{schedule.num_stages}"
      )
    num_borders = schedule.num_stages - 1
    transfers = per_border("transfer_secs", transfer_secs, num_borders)
    occupied = per_border("link_secs", link_secs, num_borders)
    self._graph = schedule.graph
    secs = times.by_kind
    self._secs = [
      secs[kind][stage] * size if kind != "U" or not pipe else 0
      for kind, stage, _, pipe, size, _ in self._graph.actions
    ]
    crossings = any(transfers) or any(occupied)
    self._crossings = _crossings(schedule, transfers, occupied) if crossings else []
    self._free: list[Secs] = [0] * schedule.num_devices
    self._link_free: dict[tuple[int, int], Secs] = {
      crossing[0]: 0 for crossing in self._crossings if crossing
    }

  def state(self) -> list[Secs]:
    """Returns when each device and each link is free for the next step."""
    return [*self._free, *self._link_free.values()]

  def step(self) -> tuple[list[Secs], list[Secs]]:
    """Returns when each action of the next step starts and ends, by its number."""
    graph, secs, crossings = self._graph, self._secs, self._crossings
    actions, devices, waits = graph.actions, graph.devices, graph.waits
    free, link_free = list(self._free), self._link_free
    starts: list[Secs] = [0] * len(actions)
    ends: list[Secs] = [0] * len(actions)
    arrivals = list(ends) if crossings else ends
    for number in graph.order:
      device = devices[number]
      start = free[device]
      if waits[number]:
        # Nothing is on the way between copies of a stage: U has the exchange in it.
        there = ends if actions[number][0] == "U" else arrivals
        for needed in waits[number]:
          if there[needed] > start:
            start = there[needed]
      starts[number] = start
      free[device] = ends[number] = end = start + secs[number]
      if crossings:
        arrivals[number] = end
        crossing = crossings[number]
        if crossing:
          link, transfer, occupied = crossing
          # A device sends in the order of its list, which is that of time.
          sent = link_free[link]
          link_free[link] = sent = (sent if sent > end else end) + occupied
          arrivals[number] = sent + transfer
    self._free = free
    return starts, ends


def _crossings(
  schedule: Schedule, transfers: Sequence[Secs], occupied: Sequence[Secs]
) -> list[_Crossing | None]:
  """Returns for each action where its result goes; None if to no other device."""
  known: dict[tuple[str, int, int, int], _Crossing | None] = {}
  result = []
  for kind, stage, _, pipe, size, _ in schedule.graph.actions:
    key = kind, stage, pipe, size
    if key not in known:
      known[key] = None
      target = stage + 1 if kind == "F" else stage - 1
      if kind in ("F", "B", "BW") and 0 <= target < schedule.num_stages:
        placement, border = schedule.placement[pipe], min(stage, target)
        link = placement[stage], placement[target]
        if link[0] != link[1]:
          known[key] = link, transfers[border] * size, occupied[border] * size
    result.append(known[key])
  return result


def per_border(
  name: str, secs: Secs | Sequence[Secs], num_borders: int
) -> Sequence[Secs]:
  """Returns a time for each border between stages, of one number or of as many.

  Raises ValueError, naming the argument, for another number of times or an impossible
  one.
  """
  if not isinstance(secs, Sequence):
    secs = [secs] * num_borders
  _check_times(name, secs, num_borders)
  return secs


def _check_times(name: str, times: Sequence[Secs], expected: int) -> None:
  if len(times) != expected:
    raise ValueError(f"{name} has {len(times)} times, expected {expected}")
  for index, value in enumerate(times):
    if not 0 <= value <= MOST:
      raise ValueError(f"{name}[{index}] is {value!r}: expected a finite number >= 0")
