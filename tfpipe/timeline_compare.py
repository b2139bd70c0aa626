"""Where a step's time goes, predicted beside measured.

Each device's time, from the first start of any device to the last end, is divided
without rest:

- busy: it works. Where spans of a device overlap, the time counts once.
- waiting: a value that its next action needs has not been computed yet, or it has done
  all its work. Updates that come at once need the gradients of all devices.
- transfer: all values that its next action needs have been computed, one of them on
  another device, and it may still be on its way.
- host: all values are there, the device is free, and the action does not start: the
  host is late.

Spans show when a value has been computed and when it is used, not when it arrives. So
all values that cross from one device and stage to another are taken to be on their way
for the same time: the shortest, over these values, from the end of what computes one to
the start of what uses it. What an action waits longer is the host's. Where the host is
late for every one of these values, what it always takes counts as transfer. In a
simulated step the host's share is 0, unless transfers wait for each other on a link: a
simulation knows of these waits, and spans alone cannot tell them from the host's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tfpipe import units
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, dependencies, order
from tfpipe.timeline import Secs, Span, Timeline

__all__ = ["Comparison", "Shares", "compare", "median_step", "shares"]

_Way = tuple[int, int, int, int, int]
"""From and to device, from and to stage, micro-batches."""


@dataclass(frozen=True)
class Shares:
  """Where the time of one step goes.

  Attributes:
    step: time from the first start to the last end, in the timeline's unit, as are all
      but the last two.
    busy: of the time that the devices work, the mean over the devices.
    waiting: likewise, for a value that has not been computed.
    transfer: likewise, for a value that is on its way.
    host: likewise, for the host. These four add up to the step.
    bubble: `Timeline.bubble`: what is not busy, as a share of 1; recomputation is busy.
    imbalance: time of the device that works longest, over the mean; 1 if none works.
  """

  step: Secs
  busy: Secs
  waiting: Secs
  transfer: Secs
  host: Secs
  bubble: float
  imbalance: float


@dataclass(frozen=True)
class Comparison:
  """A predicted step beside the median measured one.

  Attributes:
    predicted: of the simulated step, in seconds.
    measured: of the median measured step, in seconds.
    step: index of that step among those measured.
    num_steps: measured steps.
  """

  predicted: Shares
  measured: Shares
  step: int
  num_steps: int

  def rows(self) -> list[tuple[str, str, str, str]]:
    """Returns name, predicted, measured and difference, as text, for each quantity."""
    was, now = self.predicted, self.measured
    rows = [
      _times("step time", was.step, now.step),
      _times("busy", was.busy, now.busy),
      _times("waiting", was.waiting, now.waiting),
      _times("transfer", was.transfer, now.transfer),
      _times("host overhead", was.host, now.host),
    ]
    points = f"{100 * (now.bubble - was.bubble):+.1f} points"
    rows.append(("bubble", f"{was.bubble:.1%}", f"{now.bubble:.1%}", points))
    ends = (f"{was.imbalance:.3f}", f"{now.imbalance:.3f}")
    rows.append(("imbalance", *ends, f"{now.imbalance - was.imbalance:+.3f}"))
    return rows

  def text(self) -> str:
    """Returns a table, a line for each quantity."""
    rows = [("", "predicted", "measured", "difference"), *self.rows()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
      "  ".join(
        [row[0].ljust(widths[0])]
        + [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
      )
      for row in rows
    ]
    if self.num_steps > 1:
      lines.append(f"measured: the median of {self.num_steps} steps by step time")
    return "\n".join(lines)


def compare(
  schedule: Schedule, predicted: Timeline, measured: Sequence[Timeline]
) -> Comparison:
  """Compares a predicted step with measured ones.

  Args:
    schedule: what was simulated and run.
    predicted: one step, in seconds.
    measured: one timeline for each step, at least one, in seconds.

  Raises ValueError as `shares` and `median_step` do.
  """
  step = median_step(measured)
  return Comparison(
    shares(schedule, predicted), shares(schedule, measured[step]), step, len(measured)
  )


def median_step(timelines: Sequence[Timeline]) -> int:
  """Returns the index of the step with the median makespan; of two, the shorter.

  Raises ValueError if there is none.
  """
  if not timelines:
    raise ValueError("measured has no step: expected at least one timeline")
  by_time = sorted(range(len(timelines)), key=lambda step: timelines[step].makespan)
  return by_time[(len(timelines) - 1) // 2]


def shares(schedule: Schedule, timeline: Timeline) -> Shares:
  """Divides the time of one step.

  An action without a span takes no time: its result is there as soon as what it needs.
  So what a measurement cannot see, like an update of no weights, need not be in it.

  Raises ValueError if the timeline has another number of devices than the schedule, an
  action that the schedule does not have or has on another device, or one twice.
  """
  spans = _by_action(schedule, timeline)
  needs = {action: dependencies(schedule, action) for action in order(schedule)}
  done = _done(needs, spans, timeline.start)
  ways = _ways(schedule, needs, spans, done)
  gradients = max(end for action, end in done.items() if action.kind != "U")
  last = timeline.start + timeline.makespan
  divided = []
  for actions in schedule.actions:
    # What takes no time at the same moment stays in the schedule's order.
    of_device = sorted(
      (spans[a] for a in actions if a in spans),
      key=lambda span: (span.start, span.end),
    )
    moments = [
      _Moments(span.start, span.end, gradients, gradients)
      if schedule.updates_at_once and span.action.kind == "U"
      else _moments(schedule, span, needs[span.action], done, ways)
      for span in of_device
    ]
    divided.append(_divide(moments, timeline.start, last))
  busy, waiting, transfer, host = zip(*divided, strict=True)
  mean = _mean(busy)
  return Shares(
    step=timeline.makespan,
    busy=mean,
    waiting=_mean(waiting),
    transfer=_mean(transfer),
    host=_mean(host),
    bubble=timeline.bubble,
    imbalance=float(max(busy) / mean) if mean else 1.0,
  )


class _Moments(NamedTuple):
  """When an action runs, and when the last of what it needs was computed and came."""

  start: Secs
  end: Secs
  computed: Secs
  arrived: Secs


def _moments(
  schedule: Schedule,
  span: Span,
  needs: Sequence[Action],
  done: Mapping[Action, Secs],
  ways: Mapping[_Way, Secs],
) -> _Moments:
  computed = arrived = -math.inf
  for needed in needs:
    on_way = ways.get(_way(schedule, needed, span.action), 0)
    computed = max(computed, done[needed])
    arrived = max(arrived, done[needed] + on_way)
  return _Moments(span.start, span.end, computed, arrived)


def _divide(
  moments: Iterable[_Moments], start: Secs, end: Secs
) -> tuple[Secs, Secs, Secs, Secs]:
  """Divides a device's time from start to end into busy, waiting, transfer and host."""
  busy: Secs = 0
  waiting: Secs = 0
  transfer: Secs = 0
  host: Secs = 0
  free = start
  for moment in moments:
    # Each moment from `free` to `begin` belongs to one part.
    begin = max(free, moment.start)
    computed = min(max(free, moment.computed), begin)
    arrived = min(max(computed, moment.arrived), begin)
    behind = max(begin, moment.end)
    waiting += computed - free
    transfer += arrived - computed
    host += begin - arrived
    busy += behind - begin
    free = behind
  return busy, waiting + (end - free), transfer, host


def _by_action(schedule: Schedule, timeline: Timeline) -> dict[Action, Span]:
  if timeline.num_devices != schedule.num_devices:
    raise ValueError(
      f"the timeline has {timeline.num_devices} devices, but schedule {schedule.name} "
      f"has {schedule.num_devices}"
    )
  known = {action for actions in schedule.actions for action in actions}
  spans: dict[Action, Span] = {}
  for span in timeline.spans:
    if span.action not in known:
      raise ValueError(f"{span.action} is not in schedule {schedule.name}")
    if span.device != schedule.device(span.action):
      raise ValueError(
        f"{span.action} ran on device {span.device}, but schedule {schedule.name} has "
        f"it on device {schedule.device(span.action)}"
      )
    if span.action in spans:
      raise ValueError(f"{span.action} has two spans: expected a timeline of one step")
    spans[span.action] = span
  return spans


def _done(
  needs: Mapping[Action, Sequence[Action]], spans: Mapping[Action, Span], start: Secs
) -> dict[Action, Secs]:
  """Gives when the result of each action is there; `needs` is in a valid order."""
  done: dict[Action, Secs] = {}
  for action, needed in needs.items():
    if action in spans:
      done[action] = spans[action].end
    else:
      done[action] = max((done[other] for other in needed), default=start)
  return done


def _ways(
  schedule: Schedule,
  needs: Mapping[Action, Sequence[Action]],
  spans: Mapping[Action, Span],
  done: Mapping[Action, Secs],
) -> dict[_Way, Secs]:
  """Gives the shortest time of all values that cross from device to device."""
  ways: dict[_Way, Secs] = {}
  for action, span in spans.items():
    for needed in needs[action]:
      if schedule.device(needed) != schedule.device(action):
        way = _way(schedule, needed, action)
        # Clocks of two devices may differ a little.
        delay = max(0, span.start - done[needed])
        ways[way] = min(ways.get(way, delay), delay)
  return ways


def _way(schedule: Schedule, source: Action, target: Action) -> _Way:
  devices = schedule.device(source), schedule.device(target)
  return (*devices, source.stage, target.stage, source.size)


def _times(name: str, predicted: Secs, measured: Secs) -> tuple[str, str, str, str]:
  """Makes a row; the difference also as a share of what was predicted."""
  # Less than a picosecond is what rounding leaves of nothing.
  was, now = round(float(predicted), 12), round(float(measured), 12)
  secs = units.format_secs
  text = f"{'-' if now < was else '+'}{secs(abs(now - was))}"
  if was:
    text += f" ({(now - was) / was:+.1%})"
  return name, secs(was), secs(now), text


def _mean(values: Sequence[Secs]) -> Secs:
  """Returns the mean; of ints a Fraction, so that it stays exact."""
  total = sum(values)
  return Fraction(total, len(values)) if isinstance(total, int) else total / len(values)
