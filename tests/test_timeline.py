from __future__ import annotations

from fractions import Fraction

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
  # Eight units of forward and backward in two times eight.
  assert two_devices().bubble == 0.5


def test_the_longest_span_is_that_of_one_device() -> None:
  timeline = Timeline((Span(0, F, 0, 3), Span(1, F, 1, 5)), num_devices=2)
  assert timeline.makespan == 5
  assert timeline.longest_span == 4
  assert timeline.bubble == pytest.approx(1 - 7 / 10)
  assert timeline.span_bubble == pytest.approx(1 - 7 / 8)


def test_a_device_without_work_counts_as_idle() -> None:
  timeline = Timeline((Span(2, F, 0, 3),), num_devices=3)
  assert timeline.busy == (0, 0, 3)
  assert timeline.bubble == pytest.approx(2 / 3)


def test_no_time_is_no_bubble() -> None:
  timeline = Timeline((Span(0, U, 1, 1),), num_devices=1)
  assert (timeline.makespan, timeline.bubble, timeline.span_bubble) == (0, 0, 0)
  assert timeline.text(4) == "  0 ....   0%\n    0 s, bubble 0.0%"


def test_exact_times_stay_exact() -> None:
  timeline = Timeline((Span(0, F, Fraction(1, 3), Fraction(1, 2)),), num_devices=1)
  assert timeline.makespan == Fraction(1, 6)


def test_text_is_to_scale() -> None:
  assert two_devices().text(8) == (
    "  0 FFR...BB  62%\n  1 ..FFBB..  50%\n    8 s, bubble 50.0%"
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
  with pytest.raises(ValueError, match=r"F .*: ends at 1, before 2"):
    Timeline((Span(0, F, 2, 1),), num_devices=1)
  with pytest.raises(ValueError, match="width is 0"):
    two_devices().text(0)
