"""A search over K, M, schedule, V and remat: what is fast, and what is small.

Every combination is planned: its step simulated, its memory walked. Those that fit and
that no other beats in number of devices, step time and memory per device at once are
the Pareto front. The search is bounded by the actions of all schedules together, so it
tries the same settings on every machine: some ten seconds at most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from tfpipe import draft, memory, model, schedule
from tfpipe.hardware import Hardware
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.plan import align
from tfpipe.units import format_bytes, format_secs

__all__ = ["SEARCHED", "Front", "Row", "search", "table"]

SEARCHED = (
  "num_partitions",
  "num_micro_batches",
  "schedule",
  "stages_per_device",
  "remat",
)
"""Params of the pipeline that are searched unless they are given."""

BUDGET = 1_500_000
"""Most actions that are simulated, in all schedules together."""

MOST_PARTITIONS = 64


@dataclasses.dataclass(frozen=True)
class Row:
  """A setting of the pipeline and what it is predicted to take.

  Attributes:
    settings: values by name, in the order of SEARCHED; V only if it is not 0.
    step_secs: seconds of a step.
    device_bytes: bytes of the device that needs most.
    bubble: share of devices x time not spent on work; recomputation is no work.
  """

  settings: dict[str, Any]
  step_secs: float
  device_bytes: int
  bubble: float

  @property
  def flags(self) -> str:
    """The flags of the trainer that run it."""
    return " ".join(f"--{name}={value}" for name, value in self.settings.items())

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
    num_planned: settings that were planned.
    num_too_large: those of them that do not fit.
    num_left_out: settings beyond the budget.
    smallest: the one that needs least of those that do not fit, None if all fit.
  """

  rows: tuple[Row, ...]
  num_planned: int
  num_too_large: int
  num_left_out: int
  smallest: Row | None


def search(
  p: Params,
  hardware: Hardware,
  given: Collection[str] = (),
  network: Network | None = None,
) -> Front:
  """Searches the settings of a pipeline.

  Args:
    p: Params of the run.
    hardware: what it is for; its memory is the bound.
    given: names of SEARCHED that stay as they are in `p`.
    network: of `p`, if it has been asked before.

  Raises:
    ValueError: `pipeline.lengths` is set, which would fix the partition; or there is no
      setting at all.
  """
  model.check(p)
  if p.pipeline.lengths:
    raise ValueError(
      f"pipeline.lengths={p.pipeline.lengths!r}: must be empty in a search"
    )
  network = network or Network(p)
  planned: list[Row] = []
  reasons: list[str] = []
  left, left_out = BUDGET, 0
  for settings in _settings(p, network, given):
    trial = p.pipeline.Copy().Set(**settings)
    size = trial.num_partitions * max(1, trial.stages_per_device)
    size *= 4 * trial.num_micro_batches
    if size > left:
      left_out += 1
      continue
    try:
      found = draft.make(trial, network)
    except ValueError as error:
      reasons.append(str(error))  # the schedule is not for these numbers
      continue
    left -= size
    planned.append(_row(settings, found, hardware))
  if not planned:
    reason = reasons[-1] if reasons else f"all have more than {BUDGET} actions"
    raise ValueError(f"--search: no setting can be planned; the last one: {reason}")
  fitting = [row for row in planned if row.device_bytes <= hardware.memory_bytes]
  large = [row for row in planned if row.device_bytes > hardware.memory_bytes]
  return Front(
    rows=_front(fitting),
    num_planned=len(planned),
    num_too_large=len(large),
    num_left_out=left_out,
    smallest=min(large, key=lambda row: row.device_bytes, default=None),
  )


def table(front: Front, command: str) -> str:
  """Draws the front, each row with the flags that run it.

  Args:
    front: what was found.
    command: what the flags belong to.
  """
  lines = [
    f"{front.num_planned} settings planned, {front.num_too_large} of them do not fit"
    + (f"; {front.num_left_out} larger ones not planned" if front.num_left_out else "")
  ]
  if not front.rows:
    assert front.smallest is not None
    return (
      f"{lines[0]}\nnothing fits; what needs least is {front.smallest.flags}: "
      f"{format_bytes(front.smallest.device_bytes)}"
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
  return "\n".join(
    [
      *lines,
      "(micro-batches of few rows are taken to be as efficient as those of many)",
      f"not beaten in devices, step and memory; {command} and",
      align(rows),
    ]
  )


def _row(settings: dict[str, Any], found: draft.Draft, hardware: Hardware) -> Row:
  timeline = found.timeline(hardware)
  return Row(
    settings={name: value for name, value in settings.items() if value != 0},
    step_secs=float(timeline.makespan),
    device_bytes=max(memory.of_devices(found.memory())),
    bubble=timeline.bubble,
  )


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


def _settings(
  p: Params, network: Network, given: Collection[str]
) -> Iterator[dict[str, Any]]:
  """Yields settings, the most promising first: the budget may end before the list."""
  pipe = p.pipeline
  partitions = _given_or(pipe, "num_partitions", given, _partitions(network))
  combinations = []
  for number in partitions:
    numbers = _given_or(
      pipe, "num_micro_batches", given, _micro_batches(p, network, number)
    )
    for rank, micro_batches in enumerate(numbers):
      for other, remat in enumerate(
        _given_or(pipe, "remat", given, ("cell", "none", "layer"))
      ):
        combinations.append((rank + other, number, micro_batches, remat))
  for _, number, micro_batches, remat in sorted(combinations, key=lambda c: c[0]):
    for name in _given_or(pipe, "schedule", given, schedule.NAMES):
      for stages in _given_or(pipe, "stages_per_device", given, _stages(name)):
        yield {
          "num_partitions": number,
          "num_micro_batches": micro_batches,
          "schedule": name,
          "stages_per_device": stages,
          "remat": remat,
        }


def _given_or(
  pipe: Params, name: str, given: Collection[str], candidates: Collection[Any]
) -> Collection[Any]:
  return (pipe.Get(name),) if name in given else candidates


def _partitions(network: Network) -> list[int]:
  """Lists powers of two."""
  most = min(MOST_PARTITIONS, len(network.names))
  return [2**power for power in range(most.bit_length())]


def _micro_batches(p: Params, network: Network, partitions: int) -> list[int]:
  """Lists divisors of the batch nearest to 4, 2, 8, 1 times the partitions, and all."""
  rows = network.batch_size()
  tested = network.batch_size("eval_input") if p.eval_input is not None else rows
  divisors = [n for n in range(1, rows + 1) if rows % n == 0 and tested % n == 0]
  nearest = (min(divisors, key=lambda n: abs(n - f * partitions)) for f in (4, 2, 8, 1))
  return list(dict.fromkeys((*nearest, divisors[-1])))


def _stages(name: str) -> tuple[int, ...]:
  """Lists numbers of stages a device; where a schedule has no choice, its own."""
  if name in ("interleaved", "looped_bfs", "zb_interleaved"):
    return 2, 4
  return (0,)
