"""Timelines of the page: a row for each device, a block for each action."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tfpipe.program.page_axis import Scale, legend, marks, percent
from tfpipe.schedule.action import Action, Kind
from tfpipe.timeline import Secs, Span, Timeline

__all__ = ["draw"]

MAX_DEVICES = 32
MAX_SPANS = 6000
"""Most spans of one timeline that are drawn: more make the page slow."""
MIN_WIDTH = 900
"""Pixels that a timeline has at least; a narrower window scrolls."""

_WORDS: dict[Kind, str] = {
  "F": "forward",
  "R": "recomputation",
  "BW": "backward",
  "B": "input gradient",
  "W": "weight gradient",
  "U": "update",
}


class _Axis(NamedTuple):
  """Time from left to right: the first moment, what fills the width, and the text."""

  start: Secs
  longest: Secs
  scale: Scale

  def share(self, secs: Secs) -> Secs:
    return secs / self.longest if self.longest else 0


class _Row(NamedTuple):
  """A device's row: pixels from the top, height, least width for a number; shades."""

  top: int
  height: int
  room: int
  shades: Mapping[tuple[int, int], int]


def draw(drawn: Mapping[str, Timeline], scale: Scale) -> tuple[str, list[str]]:
  """Draws timelines below each other on one time axis, with a legend.

  Args:
    drawn: title of each timeline (none if empty), and its spans; at least one.
    scale: how times are written.

  Returns the drawing, and sentences on what it leaves out.
  """
  longest = max(timeline.makespan for timeline in drawn.values())
  parts, notes = [], []
  for title, timeline in drawn.items():
    track, left_out = _track(timeline, _Axis(timeline.start, longest, scale))
    if title:
      parts.append(_title(title, timeline, scale))
    parts.append(track)
    notes += [f"{title}: {note}" if title else note for note in left_out]
  labels = "".join(
    f'<text x="{percent(place)}" y="12">{mark:g}</text>'
    for mark, place in _marks(longest, scale)
    if mark
  )
  return (
    f"{_kinds(drawn.values())}"
    f'<div class="scroll"><div class="tracks" style="min-width:{MIN_WIDTH}px">'
    f"{''.join(parts)}"
    f'<div class="track"><div class="names unit">{scale.unit or "ticks"}</div>'
    f'<svg class="axis" height="16" aria-hidden="true">{labels}</svg></div>'
    '<div class="cursor"></div></div></div>',
    notes,
  )


def _marks(longest: Secs, scale: Scale) -> list[tuple[float, float]]:
  """Lists round times in the scale's unit, and their places."""
  width = float(longest) * scale.per_sec
  return [(mark, mark / width if width else 0.0) for mark in marks(0, width, 10)]


def _kinds(drawn: Iterable[Timeline]) -> str:
  """Explains the colours that occur, and the shades if a device has several stages."""
  spans = [span for timeline in drawn for span in timeline.spans]
  found = {span.action.kind for span in spans}
  items = [(kind, f"{kind} {_WORDS[kind]}") for kind in _WORDS if kind in found]
  stages = {(span.device, span.action.pipe, span.action.stage) for span in spans}
  if len(stages) > len({span.device for span in spans}):
    items.append(("F s3", "fainter: another stage of the device"))
  return legend([*items, ("", "%: how much of the time a device works")])


def _title(title: str, timeline: Timeline, scale: Scale) -> str:
  facts = f"{scale.text(timeline.makespan)}, bubble {timeline.bubble:.1%}"
  return f'<h3 class="stay">{html.escape(title)} <span>{facts}</span></h3>'


def _track(timeline: Timeline, axis: _Axis) -> tuple[str, list[str]]:
  """Draws one timeline, and says what it leaves out."""
  by_device: list[list[Span]] = [[] for _ in range(timeline.num_devices)]
  for span in sorted(timeline.spans, key=lambda span: span.start):
    by_device[span.device].append(span)
  longest_list = max(map(len, by_device))
  most_devices = min(MAX_DEVICES, max(2, MAX_SPANS // longest_list))
  devices = _chosen(timeline.num_devices, most_devices)
  most = MAX_SPANS // len(devices)
  height = 20 if len(devices) <= 12 else 14
  # As wide as the longest number, so that not only the first ones are written.
  room = 2 + 7 * max(len(_number(span.action)) for span in timeline.spans)
  names, rows, blocks = [], [], []
  makespan, busy = timeline.makespan, timeline.busy
  for index, device in enumerate(devices):
    share = float(busy[device] / makespan) if makespan else 0
    names.append(f"<div>{device}<span>{share:.0%}</span></div>")
    row = _Row(index * height, height, room, _shades(by_device[device]))
    rows.append(f'<rect class="row" y="{row.top + 1}" height="{height - 2}"/>')
    blocks += [_block(span, axis, row) for span in by_device[device][:most]]
  lines = [("", place) for _, place in _marks(axis.longest, axis.scale)]
  behind, before = (
    "".join(
      f'<line class="{look}" x1="{percent(x)}" x2="{percent(x)}" y2="100%"/>'
      for look, x in places
    )
    for places in (lines, [("end", axis.share(makespan))])
  )
  drawing = (
    f'<div class="track" style="--row:{height}px">'
    f'<div class="names">{"".join(names)}</div>'
    f'<svg class="spans" height="{len(devices) * height}" role="img" '
    f'aria-label="Timeline of {len(devices)} devices">'
    f"{''.join(rows)}{behind}{''.join(blocks)}{before}</svg></div>"
  )
  notes = []
  if len(devices) < timeline.num_devices:
    notes.append(
      f"{len(devices)} of {timeline.num_devices} devices are drawn, evenly spread."
    )
  if most < longest_list:
    notes.append(f"Of up to {longest_list} actions a device, {most} are drawn.")
  return drawing, notes


def _chosen(number: int, most: int) -> list[int]:
  """Returns at most `most` (>= 2) of `number` indexes: both ends, evenly spread."""
  if number <= most:
    return list(range(number))
  return [index * (number - 1) // (most - 1) for index in range(most)]


def _shades(spans: Sequence[Span]) -> dict[tuple[int, int], int]:
  """Gives each stage of a device, by pipe and stage, a shade from 0 to 3."""
  copies = sorted({(span.action.pipe, span.action.stage) for span in spans})
  most = max(len(copies) - 1, 1)
  return {copy: round(3 * index / most) for index, copy in enumerate(copies)}


def _block(span: Span, axis: _Axis, row: _Row) -> str:
  """Draws a span, with its micro-batch where there is room."""
  action = span.action
  start, secs = span.start - axis.start, span.end - span.start
  x, width = axis.share(start), axis.share(secs)
  when = f"starts at {axis.scale.text(start)}, takes {axis.scale.text(secs)}"
  look = f"{action.kind} s{row.shades[action.pipe, action.stage]}"
  pixels = float(width) * MIN_WIDTH
  block = (
    f'<rect class="span {look}{" thin" if pixels < 3 else ""}" x="{percent(x)}" '
    f'y="{row.top + 1}" width="{percent(width)}" height="{row.height - 2}">'
    f"<title>{html.escape(str(action))}\n{when}</title></rect>"
  )
  if pixels < row.room:
    return block
  y = row.top + row.height / 2 + 3.5
  return (
    f'{block}<text class="{look}" x="{percent(x + width / 2)}" y="{y:g}">'
    f"{_number(action)}</text>"
  )


def _number(action: Action) -> str:
  if action.kind == "U":
    return "U"
  last = f"-{action.micro_batches[-1]}" if action.size > 1 else ""
  return f"{action.micro_batch}{last}"
