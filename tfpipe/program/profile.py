"""Measured steps: what each device did when, beside what was predicted."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tfpipe import timeline_compare, timeline_files
from tfpipe.params import Params
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.timeline import Span, Timeline
from tfpipe.timeline_compare import Comparison


@dataclasses.dataclass(frozen=True)
class Window:
  """The steps to be measured.

  Attributes:
    first: number of the first one, counted from 1.
    count: how many.
  """

  first: int
  count: int

  @property
  def last(self) -> int:
    """Number of the last one."""
    return self.first + self.count - 1


def parse(text: str, max_steps: int) -> Window:
  """Reads `start:count`.

  Raises:
    ValueError: it has another form, or goes beyond the steps 2 to `max_steps`.
  """
  match = re.fullmatch(r"(\d+):(\d+)", text)
  window = Window(*map(int, match.groups())) if match else Window(0, 0)
  if window.first < 2 or window.count < 1 or window.last > max_steps:
    raise ValueError(
      f"--profile={text}: must be start:count, as 20:5 for the steps 20 to 24, within "
      f"the steps 2 to {max_steps}: the step before the first warms up"
    )
  return window


def check(params: Params) -> None:
  """Refuses what has no times to measure.

  Raises:
    ValueError: naming the field.
  """
  if params.pipeline.backend == "spmd":
    raise ValueError(
      "--profile: needs pipeline.backend='devices'; one program for all devices does "
      "not tell when it does which action"
    )


def left(window: Window | None, step: int) -> Window | None:
  """Gives the window if all of it is ahead, and says so if it is not.

  That is no refusal: the command that a run was started with must continue it.

  Args:
    window: the steps to be measured, if any.
    step: that the run continues from.
  """
  if window is None or step <= window.first - 2:
    return window
  show(
    f"--profile={window.first}:{window.count} measures nothing: the run continues "
    f"after step {step}, and the first step that can be measured is {step + 2}"
  )
  return None


class Profiler:
  """Measures the steps of a window, and tells and files what it found.

  Attributes:
    comparison: predicted and measured, as soon as there is one.
    timelines: both, in seconds, by these names.

  Raises:
    ValueError: the run has devices that the clock of the host says nothing of, or
      batches of several shapes.
  """

  def __init__(self, run: Run, window: Window, logdir: pathlib.Path) -> None:
    others = [name for name in run.devices if "CPU" not in name.upper()]
    if others:
      raise ValueError(
        f"--profile: steps are measured by the clock of the host, which runs ahead of "
        f"{others[0]}; only CPUs can be measured"
      )
    lengths = len(run.input.all_specs())
    if lengths > 1:
      raise ValueError(
        f"--profile: batches have {lengths} shapes, and the prediction is for one; set "
        "input.bucket_lengths=()"
      )
    self._run = run
    self._window = window
    self._logdir = logdir
    self._function: Any = None
    self._measured: list[Timeline] = []
    self.comparison: Comparison | None = None
    self.timelines: dict[str, Timeline] = {}

  @property
  def last(self) -> int:
    """Number of the last step to be measured, after which there are timelines."""
    return self._window.last

  def function(self, step: int) -> Any:
    """Gives the training function that measures, if step is to be measured."""
    # The step before the first is left out: it warms up.
    if not self._window.first - 1 <= step <= self._window.last:
      return None
    if self._function is None:
      self._function = self._run.train_function(timed=True)
    return self._function

  def add(self, step: int, outputs: Mapping[str, Any]) -> None:
    """Takes the times of a step, and reports after the last one."""
    if self._window.first <= step <= self._window.last:
      self._measured.append(_timeline(self._run, outputs))
    if step == self._window.last:
      self._report()

  def _report(self) -> None:
    plan = self._run.plan
    predicted = plan.timeline
    if not plan.in_seconds:
      predicted = _at_speed_of(predicted, self._measured)
    found = timeline_compare.compare(plan.schedule, predicted, self._measured)
    self.comparison = found
    self.timelines = {"predicted": predicted, "measured": self._measured[found.step]}
    show(found.text())
    if not plan.in_seconds:
      show("predicted from FLOPs, at the speed measured; --layer_times knows better")
    show(self.timelines["measured"].text())
    for name, text in (
      ("comparison.json", json.dumps(dataclasses.asdict(found), indent=2) + "\n"),
      ("timeline.json", timeline_files.to_json(self.timelines["measured"])),
      ("trace.json", timeline_files.to_chrome(self.timelines)),
    ):
      path = self._logdir / name
      path.write_text(text)
      show(f"wrote {path}")


def _timeline(run: Run, outputs: Mapping[str, Any]) -> Timeline:
  """Makes a timeline of the times of a step; updates start together, at its end."""
  schedule = run.plan.schedule
  times = outputs["times"].numpy().tolist()
  spans = [
    Span(schedule.device(action), action, start, end)
    for action, (start, end) in zip(run.pipeline.timed_actions(), times, strict=True)
  ]
  computed, ends = max(end for _, end in times), outputs["ends"].numpy().tolist()
  for device, actions in enumerate(schedule.actions):
    update = next(action for action in actions if action.kind == "U")
    spans.append(Span(device, update, computed, max(computed, ends[device])))
  return Timeline(tuple(spans), schedule.num_devices)


def _at_speed_of(predicted: Timeline, measured: list[Timeline]) -> Timeline:
  """Gives times in FLOPs the unit that makes all work together as long as measured."""
  steps = [_worked(timeline) for timeline in measured]
  factor = sorted(steps)[len(steps) // 2] / (_worked(predicted) or 1.0)
  spans = tuple(
    Span(s.device, s.action, factor * float(s.start), factor * float(s.end))
    for s in predicted.spans
  )
  return Timeline(spans, predicted.num_devices)


def _worked(timeline: Timeline) -> float:
  return sum(float(s.end - s.start) for s in timeline.spans if s.action.kind != "U")
