"""Draw a schedule as text: its lists, or one column for each tick of a timeline."""

from __future__ import annotations

import math
from fractions import Fraction

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule
from tfpipe.timeline import Timeline

__all__ = ["lists", "ticks"]


def lists(schedule: Schedule) -> str:
  """Returns one line a device with its actions in order.

  An action is its kind and micro-batch, as F0 or F0-1 for two; odd pipes are in lower
  case. A device with several stages has the stage behind: F0@2.
  """
  width = len(str(schedule.num_devices - 1))
  lines = []
  for device, actions in enumerate(schedule.actions):
    several = len({action.stage for action in actions}) > 1
    labels = " ".join(_label(action, several) for action in actions)
    lines.append(f"{device:{width}d}: {labels}")
  return "\n".join(lines)


def _label(action: Action, with_stage: bool) -> str:
  last = f"-{action.micro_batches[-1]}" if action.size > 1 else ""
  stage = f"@{action.stage}" if with_stage else ""
  letters = action.kind.lower() if action.pipe % 2 else action.kind
  return f"{letters}{action.micro_batch}{last}{stage}"


def ticks(timeline: Timeline) -> str:
  """Returns one line a device, one column a tick, '.' where it waits.

  A tick is the unit of time, or the largest whole part of it in which all times are
  whole: where each of two stages a device takes 1/2, so is a tick.

  An action is its letter (B for BW), then the last digits of its micro-batch as far as
  there is room, then dashes. Letters are lower case in odd pipes, and for the second,
  fourth .. stage of a device. 1F1B with two stages and micro-batches, a backward taking
  twice a forward:

    FF..B0.B1|
    .FB0FB1..|

  Raises ValueError, naming the action, if a tick would be less than 1/64.
  """
  columns = _columns(timeline)
  width = max(last for _, last in columns)
  rows = [["."] * width for _ in range(timeline.num_devices)]
  lower = _lower(timeline)
  for span, (first, last) in zip(timeline.spans, columns, strict=True):
    action = span.action
    letter = action.kind[0]
    if (span.device, action.pipe, action.stage) in lower:
      letter = letter.lower()
    rows[span.device][first:last] = _cell(letter, action.micro_batch, last - first)
  return "\n".join(f"{''.join(row)}|" for row in rows)


_FINEST = 64


def _columns(timeline: Timeline) -> list[tuple[int, int]]:
  """Returns the first column of each span, and the one behind its last."""
  start, scale, exact = Fraction(timeline.start), 1, []
  for span in timeline.spans:
    exact.append((Fraction(span.start) - start, Fraction(span.end) - start))
    scale = math.lcm(scale, *(time.denominator for time in exact[-1]))
    if scale > _FINEST:
      raise ValueError(
        f"{span.action}: from {span.start} to {span.end} is not a whole number of "
        f"ticks, not even of 1/{_FINEST}"
      )
  return [(int(first * scale), int(last * scale)) for first, last in exact]


def _lower(timeline: Timeline) -> set[tuple[int, int, int]]:
  """Returns the (device, pipe, stage) that are drawn in lower case."""
  places = {(s.device, s.action.pipe, s.action.stage) for s in timeline.spans}
  stages: dict[tuple[int, int], list[int]] = {}
  for device, pipe, stage in sorted(places):
    stages.setdefault((device, pipe), []).append(stage)
  return {
    (device, pipe, stage)
    for (device, pipe), of_pipe in stages.items()
    for index, stage in enumerate(of_pipe)
    if (pipe + index) % 2
  }


def _cell(letter: str, micro_batch: int, width: int) -> str:
  room = max(0, width - 1)
  digits = str(micro_batch)[-room:] if room else ""
  return f"{letter}{digits}".ljust(width, "-")[:width]
