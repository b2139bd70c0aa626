from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.schedule import KINDS, Action
from tfpipe.timeline import Span, Timeline
from tfpipe.timeline_files import from_json, to_chrome, to_json

F, BW, U = Action("F", 0, 3), Action("BW", 1, 2, pipe=1, size=2), Action("U", 1, 0)
TINY = Timeline((Span(0, F, 2, 2.5), Span(1, BW, 2.5, 4), Span(1, U, 4, 4)), 2)

numbers = st.integers(0, 10**6)
times = st.one_of(
  st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.fractions()
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
  spans = []
  for _ in range(draw(st.integers(1, 5))):
    size = draw(st.integers(1, 9))
    action = Action(
      draw(st.sampled_from(KINDS)), draw(numbers), draw(numbers), draw(numbers), size
    )
    start, end = sorted((draw(times), draw(times)))
    spans.append(Span(draw(st.integers(0, 3)), action, start, end))
  return Timeline(tuple(spans), 4)


@given(timelines())
def test_reading_gives_back_what_was_written(timeline: Timeline) -> None:
  read = from_json(to_json(timeline))
  assert read == timeline
  for before, after in zip(timeline.spans, read.spans, strict=True):
    # Equal is not enough: 1 and 1.0 are equal too, and so are 0.0 and -0.0.
    assert [repr(value) for value in after] == [repr(value) for value in before]


def test_the_file_has_a_line_for_each_span() -> None:
  assert to_json(TINY).splitlines() == [
    "{",
    '  "num_devices": 2,',
    '  "spans": [',
    '    [0, "F", 0, 3, 0, 1, 0, 2, 2.5],',
    '    [1, "BW", 1, 2, 1, 2, 0, 2.5, 4],',
    '    [1, "U", 1, 0, 0, 1, 0, 4, 4]',
    "  ]",
    "}",
  ]
  exact = Timeline((Span(0, F, Fraction(1, 3), 1),), 1)
  assert '"1/3", 1]' in to_json(exact)


def test_a_time_that_is_no_number_is_not_written() -> None:
  odd: Any = 1 + 0j
  timeline = Timeline((Span(0, F, 0, 1),), 1)
  object.__setattr__(timeline, "spans", (Span(0, F, odd, 1),))
  with pytest.raises(TypeError, match=r"F .*: start is \(1\+0j\) of type complex"):
    to_json(timeline)


@pytest.mark.parametrize(
  ("before", "after", "message"),
  [
    ('"spans"', '"span"', "'span' is not one of num_devices, spans; did you mean"),
    ('  "num_devices": 2,\n', "", "num_devices missing"),
    ('"num_devices": 2', '"num_devices": 2, "num_devices": 2', "is given twice"),
    ('"num_devices": 2', '"num_devices": true', "num_devices is True"),
    ('"num_devices": 2', '"num_devices": 1', "device is 1, but there are 1"),
    ("[0, ", '["0", ', r"spans\[0\]: device is '0', expected a whole number >= 0"),
    ('"BW"', '"BB"', r"spans\[1\]: kind is 'BB', not one of F, R, B, W, BW, U"),
    ('"F", 0, 3', '"F", 0, -3', r"spans\[0\]: micro_batch is -3"),
    ('"F", 0, 3', '"F", 0.0, 3', r"spans\[0\]: stage is 0.0"),
    ("2, 2.5]", "2]", r"spans\[0\] is \[0, .*expected \[device, kind, stage"),
    ("2, 2.5]", '2, "2.5"]', r"spans\[0\]: end is '2.5', expected a number"),
    ("2, 2.5]", '"1/0", 2.5]', r"spans\[0\]: start is '1/0'"),
    ("2, 2.5]", "2, false]", r"spans\[0\]: end is False"),
    ("2, 2.5]", "NaN, 2.5]", r"F .*: start is nan: expected a finite number"),
    ("2, 2.5]", "2, 1e999]", r"F .*: end is inf: expected a finite number"),
    ("2, 2.5]", f"2, {10**400}]", "a number of 401 digits"),
    ("2, 2.5]", f'2, "{10**400}/1"]', r"F .*: end is .*: expected a finite number"),
    ("2, 2.5]", "2, 1.5]", r"F .*: ends at 1.5, before 2"),
    ("2, 2.5]", "2, 2.5", "line 8: "),
  ],
)
def test_what_is_wrong_in_a_file_is_named(
  before: str, after: str, message: str
) -> None:
  text = to_json(TINY)
  assert before in text
  with pytest.raises(ValueError, match=message):
    from_json(text.replace(before, after, 1))


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("[]", "expected a JSON object, not list"),
    ('{"num_devices": 1, "spans": 3}', "spans is 3, expected a list"),
    ('{"num_devices": 1, "spans": []}', "at least one span"),
  ],
)
def test_something_else_than_a_timeline_is_refused(text: str, message: str) -> None:
  with pytest.raises(ValueError, match=message):
    from_json(text)


def trace(**timelines: Timeline) -> list[dict[str, Any]]:
  return json.loads(to_chrome(timelines))["traceEvents"]


def test_a_trace_names_timelines_and_devices() -> None:
  events = trace(predicted=TINY, measured=TINY)
  named = [event for event in events if event["ph"] == "M"]
  names = {
    (event["pid"], event.get("tid")): event["args"]["name"]
    for event in named
    if event["name"] in ("process_name", "thread_name")
  }
  assert names == {
    (1, None): "predicted",
    (1, 3): "device 0",
    (1, 4): "device 1",
    (2, None): "measured",
    (2, 5): "device 0",
    (2, 6): "device 1",
  }
  order = [
    (event["name"], event["args"]["sort_index"])
    for event in named
    if event["name"].endswith("sort_index")
  ]
  assert order == [
    ("process_sort_index", 1),
    ("thread_sort_index", 0),
    ("thread_sort_index", 1),
    ("process_sort_index", 2),
    ("thread_sort_index", 0),
    ("thread_sort_index", 1),
  ]


def test_a_trace_has_a_complete_event_for_each_span() -> None:
  events = [event for event in trace(measured=TINY) if event["ph"] == "X"]
  assert events == [
    {
      "ph": "X",
      "name": "F stage 0 micro 3",
      "cat": "F",
      "cname": "rail_response",
      "ts": 0,
      "dur": 500_000,
      "args": F._asdict(),
      "pid": 1,
      "tid": 2,
    },
    {
      "ph": "X",
      "name": "BW stage 1 micro 2-3 pipe 1",
      "cat": "BW",
      "cname": "heap_dump_child_node_arrow",
      "ts": 500_000,
      "dur": 1_500_000,
      "args": BW._asdict(),
      "pid": 1,
      "tid": 3,
    },
    {
      "ph": "X",
      "name": "U stage 1",
      "cat": "U",
      "cname": "generic_work",
      "ts": 2_000_000,
      "dur": 0,
      "args": U._asdict(),
      "pid": 1,
      "tid": 3,
    },
  ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1e5))
def test_events_of_a_device_never_overlap(lengths: list[float], start: float) -> None:
  spans = []
  for index, length in enumerate(lengths):
    spans.append(Span(0, Action("F", 0, index), start, start + length))
    start += length
  events = [e for e in trace(made=Timeline(tuple(spans), 1)) if e["ph"] == "X"]
  ends = 0
  for event in events:
    first = round(event["ts"] * 1000)
    # Whole nanoseconds, as far as a number of microseconds can hold them.
    assert math.isclose(first / 1000, event["ts"], rel_tol=1e-15)
    assert first >= ends
    ends = first + round(event["dur"] * 1000)


def test_a_trace_of_nothing_is_refused() -> None:
  with pytest.raises(ValueError, match="timelines is empty"):
    to_chrome({})
