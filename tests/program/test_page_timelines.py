from __future__ import annotations

import pytest

from tests.program.html_tree import Element, read
from tfpipe.program.page_axis import Scale, seconds
from tfpipe.program.page_timelines import draw
from tfpipe.schedule import Action
from tfpipe.timeline import Span, Timeline

F, BW, U = Action("F", 0, 0), Action("BW", 1, 7, size=2), Action("U", 1, 0)
PREDICTED = Timeline((Span(0, F, 0.1, 0.102), Span(1, BW, 0.102, 0.11)), 2)
MEASURED = Timeline(
  (Span(1, U, 0.014, 0.016), Span(0, F, 0.0, 0.004), Span(1, BW, 0.004, 0.014)), 2
)


def drawn(**timelines: Timeline) -> Element:
  text, notes = draw(timelines, Scale("ms", 1000))
  assert not notes
  return read(text)


def test_every_span_is_drawn_once_to_one_scale() -> None:
  tree = drawn(predicted=PREDICTED, measured=MEASURED)
  predicted, measured = tree.find("svg", "spans")
  # 16 ms fill the width; rows are 20 pixels apart.
  for svg, expected in (
    (predicted, [(0, 12.5, 1, 18), (12.5, 50, 21, 18)]),
    (measured, [(0, 25, 1, 18), (25, 62.5, 21, 18), (87.5, 12.5, 21, 18)]),
  ):
    blocks = svg.find("rect", "span")
    places = [block.numbers("x", "width", "y", "height") for block in blocks]
    assert places == expected
    assert svg.attributes["height"] == "40"
  kinds = [block.attributes["class"] for block in measured.find("rect", "span")]
  assert kinds == ["span F s0", "span BW s0", "span U s0"]
  ends = [
    svg.find("line", "end")[0].numbers("x1", "x2") for svg in tree.find("svg", "spans")
  ]
  assert ends == [(62.5, 62.5), (100, 100)]


def test_pointing_at_a_span_says_action_start_and_duration() -> None:
  blocks = drawn(measured=MEASURED).find("rect", "span")
  assert [block.find("title")[0].text for block in blocks] == [
    "F (forward of stage 0, micro-batch 0)\nstarts at 0 ms, takes 4 ms",
    "BW (backward of stage 1, micro-batches 7 to 8)\nstarts at 4 ms, takes 10 ms",
    "U (update of stage 1, number 0)\nstarts at 14 ms, takes 2 ms",
  ]


def test_blocks_bear_their_micro_batches_in_their_middle() -> None:
  (svg,) = drawn(measured=MEASURED).find("svg", "spans")
  assert [(text.text, *text.numbers("x", "y")) for text in svg.find("text")] == [
    ("0", 12.5, 13.5),
    ("7-8", 56.25, 33.5),
    ("U", 93.75, 33.5),
  ]


def test_numbers_are_written_only_where_the_longest_fits() -> None:
  # At 900 pixels: 9 for the number 5, too few for the 16 of a number of two digits.
  spans = (
    Span(0, Action("F", 0, 5), 0, 1),
    Span(0, Action("F", 0, 10), 1, 3),
    Span(0, Action("BW", 0, 5), 3, 100),
  )
  tree = drawn(made=Timeline(spans, 1))
  (svg,) = tree.find("svg", "spans")
  assert [text.text for text in svg.find("text")] == ["10", "5"]
  assert not tree.find("rect", "thin")
  narrow = Timeline((Span(0, F, 0, 1), Span(0, BW, 1, 1000)), 1)
  (block,) = drawn(made=narrow).find("rect", "thin")
  assert block.numbers("x", "width") == (0, 0.1)


def test_titles_and_rows_say_how_busy_it_was() -> None:
  tree = drawn(predicted=PREDICTED)
  (title,) = tree.find("h3")
  # 10 of 2 x 10 ms.
  assert title.all_text() == "predicted 10 ms, bubble 50.0%"
  names, unit = tree.find("div", "names")
  assert [row.all_text() for row in names.children] == ["020%", "180%"]
  assert unit.text == "ms"


def test_the_axis_has_round_times() -> None:
  tree = drawn(predicted=PREDICTED, measured=MEASURED)
  (axis,) = tree.find("svg", "axis")
  marks = [(text.text, *text.numbers("x")) for text in axis.children]
  assert marks == [(f"{ms}", 6.25 * ms) for ms in (2, 4, 6, 8, 10, 12, 14, 16)]


def test_only_the_kinds_that_occur_are_explained() -> None:
  entries = [item.all_text() for item in drawn(predicted=PREDICTED).find("li")]
  assert entries == [
    "F forward",
    "BW backward",
    "%: how much of the time a device works",
  ]


def test_the_stages_of_a_device_differ_in_shade() -> None:
  stages = [
    Action("F", stage, 0, pipe) for pipe, stage in ((0, 1), (0, 5), (1, 0), (1, 2))
  ]
  spans = tuple(Span(0, action, at, at + 1) for at, action in enumerate(stages))
  tree = drawn(made=Timeline(spans, 1))
  looks = [block.attributes["class"] for block in tree.find("rect", "span")]
  assert looks == ["span F s0", "span F s1", "span F s2", "span F s3"]
  entries = [item.all_text() for item in tree.find("li")]
  assert "fainter: another stage of the device" in entries
  pair = drawn(made=Timeline(spans[1:3], 1))
  looks = [block.attributes["class"] for block in pair.find("rect", "span")]
  assert looks == ["span F s0", "span F s3"]


def test_a_timeline_that_takes_no_time_can_be_drawn() -> None:
  tree = drawn(made=Timeline((Span(0, F, 1, 1),), 1))
  (block,) = tree.find("rect", "span")
  assert block.numbers("x", "width") == (0, 0)


def test_many_devices_get_lower_rows() -> None:
  spans = tuple(Span(device, F, 0, 1) for device in range(40))
  text, notes = draw({"": Timeline(spans, 40)}, Scale("", 1))
  tree = read(text)
  (svg,) = tree.find("svg", "spans")
  assert svg.attributes["height"] == str(32 * 14)
  assert notes == ["32 of 40 devices are drawn, evenly spread."]
  assert not tree.find("h3")
  assert tree.find("div", "unit")[0].text == "ticks"


@pytest.mark.parametrize(
  ("longest", "text"),
  [(2.5, "1.2346 s"), (0.9, "1234.6 ms"), (5e-5, "1.2346e+06 us"), (0, "1.2346 s")],
)
def test_the_unit_is_that_of_the_longest(longest: float, text: str) -> None:
  assert seconds(longest).text(1.23456) == text
