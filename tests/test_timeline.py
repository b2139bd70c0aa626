from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tfpipe.schedule import Action
from tfpipe.timeline import Span, Timeline

F, R, BW, U = (Action(kind, 0, 0) for kind in ("F", "R", "BW", "U"))


def two_devices() -> Timeline:
  return Timeline(
    (
      Span(0, F, 10, 12),
      Span(0, R, 12, 13),
      Span(0, BW, 16, 18),
      Span(1, F, 12, 14),
      Span(1, BW, 14, 16),
    ),
    num_devices=2,
  )


def test_time_counts_from_the_first_start() -> None:
  timeline = two_devices()
  assert timeline.start == 10
  assert timeline.makespan == 8
  assert timeline.longest_span == 8
  assert timeline.busy == (5, 4)


def test_recomputation_is_busy_but_waste() -> None:
  # Eight units of forward and backward in two times eight, and one of recomputation.
  assert two_devices().waste == two_devices().span_waste == 0.5
  assert two_devices().bubble == 1 - 9 / 16


def test_time_that_spans_share_counts_once() -> None:
  # 0 to 4 and 3 to 6, within which 4 to 5; then 8 to 9: 7 of 9.
  times = ((3, 6), (0, 4), (4, 5), (8, 9))
  spans = tuple(Span(0, F, start, end) for start, end in times)
  timeline = Timeline(spans, 1)
  assert timeline.busy == (7,)
  assert timeline.bubble == timeline.waste == pytest.approx(2 / 9)
  assert timeline.text(9).splitlines()[0].endswith(" 78%")
  # A recomputation beside a forward is no waste for the time they share.
  both = Timeline((Span(0, F, 0, 4), Span(0, R, 2, 6)), 1)
  assert (both.busy, both.waste) == ((6,), pytest.approx(1 / 3))


def test_times_before_zero_are_times() -> None:
  timeline = Timeline((Span(0, F, -5, -4), Span(0, F, -3, -1)), 1)
  assert (timeline.busy, timeline.bubble) == ((3,), 0.25)


def test_the_longest_span_is_that_of_one_device() -> None:
  timeline = Timeline((Span(0, F, 0, 3), Span(1, F, 1, 5)), num_devices=2)
  assert timeline.makespan == 5
  assert timeline.longest_span == 4
  assert timeline.waste == pytest.approx(1 - 7 / 10)
  assert timeline.span_waste == pytest.approx(1 - 7 / 8)


def test_a_device_without_work_counts_as_idle() -> None:
  timeline = Timeline((Span(2, F, 0, 3),), num_devices=3)
  assert timeline.busy == (0, 0, 3)
  assert timeline.waste == pytest.approx(2 / 3)


def test_no_time_is_no_bubble() -> None:
  timeline = Timeline((Span(0, U, 1, 1),), num_devices=1)
  assert (timeline.makespan, timeline.waste, timeline.span_waste) == (0, 0, 0)
  assert timeline.text(4) == "  0 ....   0%\n    0 s, bubble 0.0%"


def test_exact_times_stay_exact() -> None:
  timeline = Timeline((Span(0, F, Fraction(1, 3), Fraction(1, 2)),), num_devices=1)
  assert timeline.makespan == Fraction(1, 6)


def test_text_is_to_scale() -> None:
  assert two_devices().text(8) == (
    "  0 FFR...BB  62%\n  1 ..FFBB..  50%\n    8 s, bubble 43.8%"
  )
  assert two_devices().text(16).splitlines()[0] == "  0 FFFFRR......BBBB  62%"


def test_text_shows_what_runs_at_the_middle_of_a_column() -> None:
  spans = (Span(0, F, 0.0, 0.4), Span(0, R, 0.4, 1.6), Span(0, BW, 1.6, 3.0))
  assert Timeline(spans, 1).text(3).startswith("  0 RRB")
  assert (
    Timeline((Span(0, F, 0.0, 0.6), Span(0, R, 0.6, 3.0)), 1)
    .text(3)
    .startswith("  0 FRR")
  )


def test_impossible_timelines_are_refused() -> None:
  with pytest.raises(ValueError, match="at least one span"):
    Timeline((), num_devices=1)
  with pytest.raises(ValueError, match="device is 1, but there are 1"):
    Timeline((Span(1, F, 0, 1),), num_devices=1)
  device: Any
  for device in (float("nan"), 0.5, -1):
    with pytest.raises(ValueError, match=f"R .*: device is {device}, but there are 2"):
      Timeline((Span(0, F, 0, 1), Span(device, R, 1, 2), Span(1, F, 0, 1)), 2)
  with pytest.raises(ValueError, match=r"F .*: ends at 1, before 2"):
    Timeline((Span(0, F, 2, 1),), num_devices=1)
  for secs in (10**400, float("nan"), -(10**400), Fraction(10**400)):
    with pytest.raises(ValueError, match=r"F .*: start is .*: expected a finite num"):
      Timeline((Span(0, F, secs, 1),), num_devices=1)
  with pytest.raises(ValueError, match="width is 0"):
    two_devices().text(0)
