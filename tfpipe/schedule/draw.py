"""Draw a schedule as text: its lists, or one column for each tick of a timeline."""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule
from tfpipe.timeline import Secs, Timeline

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
  return f"{_letters(action, action.kind)}{action.micro_batch}{last}{stage}"


def ticks(timeline: Timeline) -> str:
  """Returns one line a device, one column a unit of time, '.' where it waits.

  An action is its letter (B for BW; lower case in odd pipes), then the last digits of
  its micro-batch as far as there is room, then dashes. 1F1B with two stages and
  micro-batches, a backward taking twice a forward:

    FF..B0.B1|
    .FB0FB1..|

  Raises ValueError if an action does not start and end at whole numbers.
  """
  num_ticks = _tick(timeline.makespan, "makespan")
  rows = [["."] * num_ticks for _ in range(timeline.num_devices)]
  for span in timeline.spans:
    first = _tick(span.start - timeline.start, str(span.action))
    last = _tick(span.end - timeline.start, str(span.action))
    rows[span.device][first:last] = _cell(span.action, last - first)
  return "\n".join(f"{''.join(row)}|" for row in rows)


def _cell(action: Action, width: int) -> str:
  letter = _letters(action, action.kind[0])
  room = max(0, width - 1)
  digits = str(action.micro_batch)[-room:] if room else ""
  return f"{letter}{digits}".ljust(width, "-")[:width]


def _letters(action: Action, letters: str) -> str:
  return letters.lower() if action.pipe % 2 else letters


def _tick(time: Secs, what: str) -> int:
  if time != int(time):
    raise ValueError(f"{what}: time {time} is not a whole number of ticks")
  return int(time)
