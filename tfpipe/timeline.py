"""When each device did what: the common form of a simulated and a measured step."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from tfpipe import units
from tfpipe.schedule.action import Action
from tfpipe.text_files import MOST

__all__ = ["Secs", "Span", "Timeline"]

Secs = float | Fraction
"""Time in seconds or in any unit; ints and Fractions stay exact."""


class Span(NamedTuple):
  """One action of a device, from start to end."""

  device: int
  action: Action
  start: Secs
  end: Secs


@dataclass(frozen=True)
class Timeline:
  """All spans of one or more steps.

  `bubble` is what reports show: the share of devices x time in which a device waits;
  recomputation is work. Papers compare schedules by what is not spent on the forwards
  and backwards themselves, so that recomputation is waste, in two ways. `waste` takes
  the time from the first start to the last end, and counts where all devices wait for
  each other between steps, as for a global gradient norm. `span_waste` takes the
  longest time any one device is in use, as the Zero Bubble papers do: what a long run
  without such a barrier comes to. A recomputation inside a backward (remat `layer`)
  cannot be told from it, and is work everywhere.

  Where spans of a device overlap, their time counts once.

  Attributes:
    spans: in any order, at least one.
    num_devices: devices, including those that had nothing to do.

  Raises ValueError for no spans, an unknown device, a time that is not finite, and a
  span that ends before it starts.
  """

  spans: tuple[Span, ...]
  num_devices: int

  def __post_init__(self) -> None:
    if not self.spans:
      raise ValueError("a timeline needs at least one span")
    # All at once, as there are 100,000s of them: what is not a number is in no order.
    devices, _, starts, ends = zip(*self.spans, strict=True)
    sound = (
      set(devices) <= {*range(self.num_devices)}
      and all(map(operator.le, starts, ends))
      and min(starts) >= -MOST
      and max(ends) <= MOST
    )
    if not sound:
      raise ValueError(next(filter(None, map(self._wrong, self.spans))))

  def _wrong(self, span: Span) -> str:
    """Says what is wrong with a span; nothing if it is sound."""
    if span.device not in range(self.num_devices):
      return f"{span.action}: device is {span.device}, but there are {self.num_devices}"
    for name, secs in (("start", span.start), ("end", span.end)):
      if not abs(secs) <= MOST:
        return f"{span.action}: {name} is {secs}: expected a finite number"
    if span.end < span.start:
      return f"{span.action}: ends at {span.end}, before {span.start}"
    return ""

  @cached_property
  def start(self) -> Secs:
    """When the first action starts."""
    return min(span.start for span in self.spans)

  @cached_property
  def makespan(self) -> Secs:
    """Time from the first start to the last end."""
    return max(span.end for span in self.spans) - self.start

  @property
  def longest_span(self) -> Secs:
    """The longest time from one device's first start to its last end."""
    starts: dict[int, Secs] = {}
    ends: dict[int, Secs] = {}
    for span in self.spans:
      starts[span.device] = min(starts.get(span.device, span.start), span.start)
      ends[span.device] = max(ends.get(span.device, span.end), span.end)
    return max(ends[device] - start for device, start in starts.items())

  @cached_property
  def busy(self) -> tuple[Secs, ...]:
    """Time each device works, recomputation included."""
    return self._covered(self.spans)

  @property
  def bubble(self) -> float:
    """Share of devices x makespan in which devices wait; 0 if nothing takes time."""
    return self._rest(self.busy, self.makespan)

  @property
  def waste(self) -> float:
    """As `bubble`, but recomputation is no work."""
    return self._rest(self._first, self.makespan)

  @property
  def span_waste(self) -> float:
    """As `waste`, as a share of devices x longest_span."""
    return self._rest(self._first, self.longest_span)

  @property
  def _first(self) -> tuple[Secs, ...]:
    """Time each device does what it has not done before."""
    return self._covered([span for span in self.spans if span.action.kind != "R"])

  def _covered(self, spans: Sequence[Span]) -> tuple[Secs, ...]:
    covered: list[Secs] = [0] * self.num_devices
    free: list[Secs] = [self.start] * self.num_devices
    for device, _, start, end in sorted(spans, key=operator.attrgetter("start")):
      behind = free[device]
      if end > behind:
        covered[device] += end - (behind if behind > start else start)
        free[device] = end
    return tuple(covered)

  def _rest(self, work: Sequence[Secs], secs: Secs) -> float:
    return float(1 - sum(work) / (self.num_devices * secs)) if secs else 0.0

  def text(self, width: int = 72) -> str:
    """Draws one line a device, time to scale in `width` columns, '.' where it waits.

    A column shows the kind of the action at its middle: F, R, B (also for BW), W or U.
    Each line ends with the busy share of the makespan; a last line sums up.
    """
    if width < 1:
      raise ValueError(f"width is {width}: expected at least 1 column")
    start, makespan = self.start, self.makespan
    rows = [["."] * width for _ in range(self.num_devices)]
    scale = width / makespan if makespan else 0
    for span in self.spans:
      first = _round((span.start - start) * scale)
      last = _round((span.end - start) * scale)
      rows[span.device][first:last] = span.action.kind[0] * (last - first)
    lines = [
      f"{device:3d} {''.join(row)} {float(busy / makespan) if makespan else 0:4.0%}"
      for device, (row, busy) in enumerate(zip(rows, self.busy, strict=True))
    ]
    secs = units.format_secs(float(makespan))
    return "\n".join([*lines, f"    {secs}, bubble {self.bubble:.1%}"])


def _round(column: Secs) -> int:
  """Rounds halves down: then a column shows what runs at its middle."""
  return math.ceil(column - Fraction(1, 2))
