"""A search over K, M, schedule, its options and remat: what is fast, and what is small.

Every combination is planned: its memory walked and, if it fits, its step simulated.
Those that fit and that no other beats in number of devices, step time and memory per
device at once are the Pareto front. The search is bounded by the actions of all
schedules together, so it tries the same settings on every machine, the most promising
ones first: some ten seconds at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfpipe import draft, model, schedule
from tfpipe.draft import Draft
from tfpipe.hardware import Hardware
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.plan import align
from tfpipe.plan_settings import FLAGS, Settings, least_partitions, promising
from tfpipe.units import format_bytes, format_secs

__all__ = ["SEARCHED", "Front", "Row", "search", "table"]

SEARCHED = (*FLAGS, *(name for name in model.SCHEDULE_OPTIONS if name not in FLAGS))
"""Params of the pipeline that are searched unless they are given."""

BUDGET = 4_000_000
"""Most actions that are planned, in all schedules together."""


@dataclasses.dataclass(frozen=True)
class Row:
  """A setting of the pipeline and what it is predicted to take.

  Attributes:
    settings: values by name, in the order of SEARCHED; of a schedule's options those
      that are not 0, or not what the run has.
    step_secs: seconds of a step.
    device_bytes: bytes of the device that needs most.
    bubble: share of devices x step in which a device waits; recomputation is work.
  """

  settings: Settings
  step_secs: float
  device_bytes: int
  bubble: float

  @property
  def flags(self) -> str:
    """The flags of the trainer that run it."""
    return " ".join(
      f"--{name}={value}" if name in FLAGS else f"--set pipeline.{name}={value}"
      for name, value in self.settings.items()
    )

  def beats(self, other: Row) -> bool:
    """Whether this is nowhere worse: in devices, step time and memory per device.

    To three digits, as shown: what differs by less is equal.
    """
    return (
      self.settings["num_partitions"] <= other.settings["num_partitions"]
      and _three_digits(self.step_secs) <= _three_digits(other.step_secs)
      and _three_digits(self.device_bytes) <= _three_digits(other.device_bytes)
    )


@dataclasses.dataclass(frozen=True)
class Front:
  """What a search found.

  Attributes:
    rows: the Pareto front, by number of devices and step time.
    tried: the values that were planned, by name, sorted.
    least_partitions: with fewer, weights and slots alone do not fit.
    num_planned: settings that were planned.
    num_too_large: those of them that do not fit.
    num_too_few: settings with fewer partitions than fit in any order of actions.
    num_left_out: settings beyond the budget.
    smallest: the one that needs least of those that do not fit, None if all fit.
  """

  rows: tuple[Row, ...]
  tried: dict[str, tuple[Any, ...]]
  least_partitions: int
  num_planned: int
  num_too_large: int
  num_too_few: int
  num_left_out: int
  smallest: Row | None


def search(p: Params, hardware: Hardware, given: Collection[str] = ()) -> Front:
  """Searches the settings of a pipeline.

  Args:
    p: Params of the run.
    hardware: what it is for; its memory is the bound.
    given: names of SEARCHED that stay as they are in `p`. An option of schedules is
      kept where a schedule has it; of these, `stages_per_device` excludes all others.

  Raises:
    ValueError: `pipeline.lengths` is set, which would fix the partition; a value that
      is given is not allowed; or there is no setting at all.
  """
  network = _network(p, given)
  found = _Found(p, given, hardware)
  for settings in promising(p.pipeline, network, given, hardware.memory_bytes):
    found.add(settings, network)
  if not found.rows:  # then the smallest is of interest
    for settings in found.take_too_few():
      found.plan(settings, network)
  if not found.num_planned:
    raise ValueError(f"--search: no setting can be planned: {found.reason()}")
  return Front(
    rows=_front([row for _, row in sorted(found.rows, key=lambda pair: pair[0])]),
    tried={name: tuple(sorted(values)) for name, values in found.tried.items()},
    least_partitions=least_partitions(network, hardware.memory_bytes),
    num_planned=found.num_planned,
    num_too_large=found.num_planned - len(found.rows),
    num_too_few=len(found.too_few),
    num_left_out=found.num_left_out,
    smallest=found.smallest(),
  )


def _network(p: Params, given: Collection[str]) -> Network:
  """Checks what is given, and makes the network."""
  if p.pipeline.lengths:
    raise ValueError(
      f"pipeline.lengths={p.pipeline.lengths!r}: must be empty in a search"
    )
  checked = p.Copy()
  unset = dict.fromkeys(model.SCHEDULE_OPTIONS, 0)
  if "schedule" not in given:
    # An option must be one of some schedule; which one, is searched.
    for option in set(given).intersection(unset):
      value = {option: p.pipeline.Get(option)}
      having = next(n for n in model.SCHEDULES if option in model.schedule_options(n))
      checked.pipeline.Set(**{"schedule": having, **unset, **value})
      model.check(checked)
    checked.pipeline.Set(schedule=model.SCHEDULES[0])
  for option in set(unset).difference(given if "schedule" in given else ()):
    checked.pipeline.Set(**{option: 0})
  network = Network(checked)
  number, most = p.pipeline.num_partitions, len(network.names)
  if "num_partitions" in given and number > most:
    raise ValueError(
      f"pipeline.num_partitions={number}: must be at most the number of layers, {most}"
    )
  return network


class _Found:
  """What has been planned so far.

  Attributes:
    rows: those that fit, each with its place in the order of plain schedules first.
    tried: values planned, by name.
    num_planned: settings that were planned.
    num_left_out: settings beyond the budget.
    too_few: settings with fewer partitions than fit in any order of actions.
  """

  def __init__(self, p: Params, given: Collection[str], hardware: Hardware) -> None:
    self._pipe = p.pipeline
    self._hardware = hardware
    self._left = BUDGET
    self._smallest: tuple[int, Settings, Draft] | None = None
    self._shown = {
      name
      for name in SEARCHED
      if name not in model.SCHEDULE_OPTIONS or name in given or p.pipeline.Get(name)
    }
    self.rows: list[tuple[int, Row]] = []
    self.tried: dict[str, set[Any]] = {name: set() for name in FLAGS}
    self.num_planned = self.num_left_out = 0
    self.too_few: list[tuple[int, Settings]] = []
    self._refused: list[tuple[Settings, str]] = []

  def add(self, setting: tuple[int, Settings], network: Network) -> None:
    """Plans a setting if it may fit and the budget allows."""
    settings = setting[1]
    pipe = self._pipe.Copy().Set(**settings)
    if draft.effort(pipe) > self._left:
      self.num_left_out += 1
      return
    try:
      fewest = draft.fewest_partitions(pipe, network, self._hardware.memory_bytes)
    except ValueError as error:  # e.g. a layer is not for these numbers
      self._refused.append((settings, str(error)))
      return
    if settings["num_partitions"] < fewest:
      self.too_few.append(setting)
    else:
      self.plan(setting, network)

  def take_too_few(self) -> list[tuple[int, Settings]]:
    """Gives away the settings with too few partitions."""
    taken, self.too_few = self.too_few, []
    return taken

  def plan(self, setting: tuple[int, Settings], network: Network) -> None:
    """Plans a setting, as far as the budget goes."""
    place, settings = setting
    pipe = self._pipe.Copy().Set(**settings)
    effort = draft.effort(pipe)
    if effort > self._left:
      self.num_left_out += 1
      return
    try:
      made = draft.make(pipe, network)
    except ValueError as error:  # e.g. the schedule is not for these numbers
      self._refused.append((settings, str(error)))
      return
    self._left -= effort
    self.num_planned += 1
    self._note(settings, made)
    need = made.most_bytes()
    if need <= self._hardware.memory_bytes:
      self.rows.append((place, self._row(settings, made, need)))
    elif self._smallest is None or need < self._smallest[0]:
      self._smallest = need, settings, made

  def reason(self) -> str:
    """Says why no setting could be planned: what was tried, and the first refusal."""
    if not self._refused:
      return f"the smallest has more than {BUDGET} actions"
    tried = {
      name: sorted({settings[name] for settings, _ in self._refused}) for name in FLAGS
    }
    return f"{_listed(tried)} are refused, first: {self._refused[0][1]}"

  def smallest(self) -> Row | None:
    """Returns what needs least of what does not fit."""
    if self._smallest is None:
      return None
    need, settings, made = self._smallest
    return self._row(settings, made, need)

  def _row(self, settings: Settings, made: Draft, need: int) -> Row:
    timeline = made.timeline(self._hardware)
    return Row(
      settings={n: v for n, v in settings.items() if v or n in self._shown},
      step_secs=float(timeline.makespan),
      device_bytes=need,
      bubble=timeline.bubble,
    )

  def _note(self, settings: Settings, made: Draft) -> None:
    stages = made.schedule.num_stages // made.schedule.num_devices
    for name, values in self.tried.items():
      values.add(stages if name == "stages_per_device" else settings[name])


def table(front: Front, command: str) -> str:
  """Draws the front, each row with the flags that run it.

  Args:
    front: what was found.
    command: what the flags belong to.
  """
  lines = [
    f"{front.num_planned} settings planned, {front.num_too_large} of them do not fit"
    + (f"; {front.num_too_few} more cannot fit" if front.num_too_few else "")
    + (f"; {front.num_left_out} more beyond the bound" if front.num_left_out else ""),
    f"tried: {_listed(front.tried)}",
  ]
  if front.least_partitions > 1:
    lines.append(
      f"weights, slots and gradients need at least {front.least_partitions} devices"
    )
  if not front.rows:
    assert front.smallest is not None
    need = format_bytes(front.smallest.device_bytes)
    return "\n".join(
      [*lines, f"nothing fits; what needs least is {front.smallest.flags}: {need}"]
    )
  rows = [["step", "memory", "bubble", "flags"]]
  rows += [
    [
      format_secs(row.step_secs),
      format_bytes(row.device_bytes),
      f"{row.bubble:.1%}",
      row.flags,
    ]
    for row in front.rows
  ]
  lines.append(
    "(micro-batches of few rows are taken to be as efficient as those of many)"
  )
  if any(map(_cut_without_need, front.rows)):
    lines.append(
      "(more cells than one in a single partition need less memory: less is computed "
      "again at once, and fewer gradients are there before they are added up)"
    )
  return "\n".join(
    [
      *lines,
      f"not beaten in devices, step and memory by any of these; {command} and",
      align(rows),
    ]
  )


def _cut_without_need(row: Row) -> bool:
  """Whether several cells are on the only device."""
  name, stages = row.settings["schedule"], row.settings.get("stages_per_device", 0)
  if name in schedule.NAMES:
    stages = schedule.num_stages(name, 1, stages)
  return row.settings["num_partitions"] == 1 and stages > 1


def _listed(tried: Mapping[str, Sequence[Any]]) -> str:
  return "; ".join(f"{name} {', '.join(map(str, v))}" for name, v in tried.items())


def _three_digits(value: float) -> float:
  return float(f"{value:.3g}")


def _front(rows: list[Row]) -> tuple[Row, ...]:
  """Keeps what nothing beats; of equals the first."""
  best: list[Row] = []
  for row in rows:
    if not any(other.beats(row) for other in best):
      best = [other for other in best if not row.beats(other)]
      best.append(row)
  return tuple(
    sorted(best, key=lambda row: (row.settings["num_partitions"], row.step_secs))
  )
