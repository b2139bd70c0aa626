"""Timelines as files: JSON to read back, and traces for Chrome's and Perfetto's viewer.

The JSON holds the number of devices and a line for each span:

  {
    "num_devices": 2,
    "spans": [
      [0, "F", 0, 0, 0, 1, 0, 0.0, 0.25],
      ...
    ]
  }

A span is [device, kind, stage, micro_batch, pipe, size, version, start, end].
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from tfpipe import text_files
from tfpipe.schedule.action import KINDS, Action, Kind
from tfpipe.spelling import nearest
from tfpipe.timeline import Secs, Span, Timeline

__all__ = ["from_json", "to_chrome", "to_json"]

_FIELDS = ("num_devices", "spans")
_COLUMNS = ("device", *Action._fields, "start", "end")
_FRACTION = re.compile(r"-?\d+/[1-9]\d*", re.ASCII)
# The viewers know colours by these names only.
_COLOURS: dict[Kind, str] = {
  "F": "rail_response",  # blue
  "R": "thread_state_uninterruptible",  # mauve
  "B": "thread_state_iowait",  # orange
  "W": "rail_load",  # green
  "BW": "heap_dump_child_node_arrow",  # brown
  "U": "generic_work",  # grey
}


def to_json(timeline: Timeline) -> str:
  """Returns the timeline as JSON text, a line for each span.

  Ints and floats are written so that reading gives back the same; a Fraction is the
  text "1/3".

  Raises TypeError for a time that is none of these.
  """
  spans = ",\n    ".join(
    json.dumps(
      [
        span.device,
        *span.action,
        _time_text(span, "start", span.start),
        _time_text(span, "end", span.end),
      ]
    )
    for span in timeline.spans
  )
  return (
    f'{{\n  "num_devices": {timeline.num_devices},\n'
    f'  "spans": [\n    {spans}\n  ]\n}}\n'
  )


def from_json(text: str) -> Timeline:
  """Reads what `to_json` writes; ValueError names the line or the field."""
  facts = text_files.from_json(text)
  if not isinstance(facts, dict):
    raise ValueError(f"expected a JSON object, not {type(facts).__name__}")
  for field in facts:
    if field not in _FIELDS:
      raise ValueError(
        f"field {field!r} is not one of {', '.join(_FIELDS)}{nearest(field, _FIELDS)}"
      )
  missing = [field for field in _FIELDS if field not in facts]
  if missing:
    raise ValueError(f"{', '.join(missing)} missing")
  num_devices = _number(facts["num_devices"], "num_devices")
  if not isinstance(facts["spans"], list):
    raise ValueError(f"spans is {facts['spans']!r}, expected a list")
  spans = tuple(
    _span(values, f"spans[{index}]") for index, values in enumerate(facts["spans"])
  )
  return Timeline(spans, num_devices)


def to_chrome(timelines: Mapping[str, Timeline]) -> str:
  """Returns timelines as JSON of the Trace Event Format.

  chrome://tracing and Perfetto open it. Each timeline is a process of that name, each
  device a thread, each action a complete event; all start at 0. Times of the timelines
  are seconds; those of the trace microseconds, in whole nanoseconds.

  Raises ValueError if there is no timeline.
  """
  if not timelines:
    raise ValueError("timelines is empty: expected at least one")
  # Some viewers take 0 for the idle process, and a thread for the main one if its
  # number is that of a process. So all numbers differ, from 1 on.
  threads = itertools.count(len(timelines) + 1)
  events: list[dict[str, Any]] = []
  for process, (name, timeline) in enumerate(timelines.items(), start=1):
    events += _names("process", {"pid": process}, name, process)
    start = timeline.start
    of_device = [{"pid": process, "tid": next(threads)} for _ in timeline.busy]
    for device, thread in enumerate(of_device):
      events += _names("thread", thread, f"device {device}", device)
    events += [
      {**_event(span, start), **of_device[span.device]}
      for span in sorted(timeline.spans, key=lambda span: (span.device, span.start))
    ]
  lines = ",\n".join(json.dumps(event) for event in events)
  return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _names(
  what: str, place: Mapping[str, int], name: str, index: int
) -> Iterator[dict[str, Any]]:
  """Yields the events that name a process or thread and say where it stands."""
  for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": index})):
    yield {"ph": "M", "name": f"{what}_{key}", **place, "args": args}


def _event(span: Span, start: Secs) -> dict[str, Any]:
  # Events of a thread must not overlap. As start and end are rounded to nanoseconds,
  # not start and duration, what follows at once never starts before what it follows.
  first, last = (round((secs - start) * 10**9) for secs in (span.start, span.end))
  return {
    "ph": "X",
    "name": _title(span.action),
    "cat": span.action.kind,
    "cname": _COLOURS[span.action.kind],
    "ts": first / 1000,
    "dur": (last - first) / 1000,
    "args": span.action._asdict(),
  }


def _title(action: Action) -> str:
  """Names an action, as in "F stage 2 micro 5"."""
  words = f"{action.kind} stage {action.stage}"
  if action.kind != "U":
    words += f" micro {action.micro_batch}"
  if action.size > 1:
    words += f"-{action.micro_batches[-1]}"
  return f"{words} pipe {action.pipe}" if action.pipe else words


def _time_text(span: Span, name: str, secs: Secs) -> float | str:
  if isinstance(secs, Fraction):
    return f"{secs.numerator}/{secs.denominator}"
  if not isinstance(secs, int | float):
    raise TypeError(
      f"{span.action}: {name} is {secs!r} of type {type(secs).__name__}: expected int, "
      "float or Fraction"
    )
  return secs


def _span(values: Any, where: str) -> Span:
  if not isinstance(values, list) or len(values) != len(_COLUMNS):
    raise ValueError(f"{where} is {values!r}, expected [{', '.join(_COLUMNS)}]")
  device, kind, *numbers, start, end = values
  if kind not in KINDS:
    raise ValueError(
      f"{where}: kind is {kind!r}, not one of {', '.join(KINDS)}"
      f"{nearest(str(kind), KINDS)}"
    )
  fields = zip(Action._fields[1:], numbers, strict=True)
  action = Action(kind, *(_number(v, f"{where}: {name}") for name, v in fields))
  return Span(
    _number(device, f"{where}: device"),
    action,
    _time(start, f"{where}: start"),
    _time(end, f"{where}: end"),
  )


def _number(value: Any, where: str) -> int:
  if type(value) is not int or value < 0:
    raise ValueError(f"{where} is {value!r}, expected a whole number >= 0")
  return value


def _time(value: Any, where: str) -> Secs:
  if isinstance(value, str) and _FRACTION.fullmatch(value):
    return Fraction(value)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise ValueError(f'{where} is {value!r}, expected a number or text like "1/3"')
  return value
