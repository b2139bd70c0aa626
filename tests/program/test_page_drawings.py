"""The page's curves, memory bars and round values."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.program.html_tree import Element, read
from tfpipe.memory import StageMemory
from tfpipe.program import page_bars, page_curves
from tfpipe.program.page_axis import marks, percent
from tfpipe.program.page_bars import MemoryRow
from tfpipe.program.page_style import STYLE

GIB = 2**30


def points(svg: Element) -> list[list[tuple[float, ...]]]:
  return [
    [tuple(map(float, pair.split(","))) for pair in line.split()]
    for line in (e.attributes["points"] or "" for e in svg.find("polyline"))
  ]


def test_curves_share_their_axes() -> None:
  text, notes = page_curves.draw({"train": [(0, 4), (10, 2)], "eval": [(5, 3)]})
  tree = read(text)
  # Values from 2 to 4 with 0.12 to spare on both sides of 200 pixels.
  top, middle = 200 * 0.12 / 2.24, 100
  train, evaluated = points(tree)
  assert train[0] == pytest.approx((0, top), abs=0.01)
  assert train[1] == pytest.approx((1000, 200 - top), abs=0.01)
  assert evaluated == [(500, middle)]
  # A line of one point shows nothing.
  (dot,) = tree.find("circle", "c1")
  assert dot.numbers("cx", "cy") == (50, middle)
  assert not notes
  (axis,) = tree.find("svg", "axis")
  assert [(mark.text, *mark.numbers("x")) for mark in axis.children] == [
    (f"{step}", 10 * step) for step in (0, 2, 4, 6, 8, 10)
  ]
  (values,) = tree.find("div", "values")
  assert [mark.text for mark in values.children] == ["2", "2.5", "3", "3.5", "4"]
  assert [item.all_text() for item in tree.find("li")] == ["train", "eval"]


def test_each_step_has_a_strip_that_says_its_values() -> None:
  curves = {"train": [(0, 4.0), (10, 2.0)], "eval": [(5, 3.0), (10, 2.25)]}
  strips = read(page_curves.draw(curves)[0]).find("rect", "strip")
  assert [strip.numbers("x", "width") for strip in strips] == [
    (0, 25),
    (25, 50),
    (75, 25),
  ]
  assert [strip.find("title")[0].text for strip in strips] == [
    "step 0\ntrain 4",
    "step 5\neval 3",
    "step 10\ntrain 2\neval 2.25",
  ]


def test_values_that_are_not_finite_are_counted() -> None:
  text, notes = page_curves.draw({"train": [(1, 2.0), (2, math.nan), (3, math.inf)]})
  assert [len(line) for line in points(read(text))] == [1]
  assert notes == ["train: 2 values are not finite."]
  assert page_curves.draw({"train": [(1, math.nan)]}) == (
    "",
    ["train: 1 values are not finite."],
  )


def test_a_long_curve_keeps_its_extremes() -> None:
  curve = [(step, float(step % 7)) for step in range(10_000)]
  curve[4321] = (4321, 99.0)
  curve[8765] = (8765, -99.0)
  text, notes = page_curves.draw({"train": curve})
  tree = read(text)
  ((*line,),) = points(tree)
  assert len(line) == 600
  assert [x for x, _ in line] == sorted(x for x, _ in line)
  # 198 between the extremes, 6 % of it to spare on both sides.
  top = 200 * 0.06 / 1.12
  assert min(y for _, y in line) == pytest.approx(top, abs=0.01)
  assert max(y for _, y in line) == pytest.approx(200 - top, abs=0.01)
  assert notes == [
    "train: 10000 values, of which the lowest and highest of each of 300 stretches are "
    "drawn."
  ]


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_one_point_is_a_curve(value: float) -> None:
  tree = read(page_curves.draw({"train": [(7, value)]})[0])
  assert points(tree) == [[(0, 100)]]


def test_values_are_marked_where_they_are_and_not_at_the_axis_of_steps() -> None:
  same = read(page_curves.draw({"train": [(1, 0.0), (9, 0.0)]})[0])
  (values,) = same.find("div", "values")
  assert [mark.text for mark in values.children] == ["0"]
  wide = read(page_curves.draw({"train": [(1, -1.0), (9, 1.0)]})[0])
  (values,) = wide.find("div", "values")
  assert [mark.text for mark in values.children] == ["-1", "-0.5", "0", "0.5", "1"]


def test_memory_is_stacked_to_one_scale() -> None:
  rows = [
    MemoryRow("a", {"weights": 2 * GIB, "stash": 4 * GIB}, limit=8 * GIB),
    MemoryRow("b", {"weights": GIB}, limit=8 * GIB),
  ]
  tree = read(page_bars.draw(rows))
  first, second = tree.find("svg", role="img")
  assert [part.numbers("x", "width") for part in first.find("rect", "part")] == [
    (0, 25),
    (25, 50),
  ]
  assert [part.numbers("x", "width") for part in second.find("rect", "part")] == [
    (0, 12.5)
  ]
  tips = [part.find("title")[0].text for part in first.find("rect", "part")]
  assert tips == ["weights: 2.0 GiB", "stash: 4.0 GiB"]
  assert first.find("line", "limit")[0].numbers("x1", "x2") == (100, 100)
  totals = [cell.text for cell in tree.find("td", "number")]
  assert totals == ["6.0 GiB of 8.0 GiB", "1.0 GiB of 8.0 GiB"]
  entries = [item.all_text() for item in tree.find("li")]
  assert entries == ["weights", "stash", "line: what the device has"]


def test_each_kind_of_memory_has_a_colour_of_its_own() -> None:
  others = {"device", "device_activations", "pipe", "stage"}
  kinds = {field.name for field in dataclasses.fields(StageMemory)} - others
  tree = read(page_bars.draw([MemoryRow("cpu", dict.fromkeys(sorted(kinds), GIB))]))
  looks = {part.attributes["class"] for part in tree.find("rect", "part")}
  assert len(looks) == len(kinds) == 9
  light, dark = STYLE.split("@media (prefers-color-scheme: dark)", 1)
  for scheme in (light, dark.split("* {", 1)[0]):
    colours = dict(re.findall(r"--(m\d): (#\w+)", light)) | dict(
      re.findall(r"--(m\d): (#\w+)", scheme)
    )
    of_looks = {colours[(look or "").removeprefix("part ")] for look in looks}
    assert len(of_looks) == len(kinds)
  for look in looks:
    name = (look or "").removeprefix("part ")
    assert f".{name} {{ fill: var(--{name}); }}" in STYLE


def test_what_does_not_fit_goes_beyond_the_line() -> None:
  (line,) = read(page_bars.draw([MemoryRow("a", {"w": 100}, limit=80)])).find("line")
  assert line.numbers("x1") == (80,)


@pytest.mark.parametrize("limit", [0, 80 * GIB])
def test_a_line_that_is_unknown_or_far_off_is_not_drawn(limit: int) -> None:
  tree = read(page_bars.draw([MemoryRow("a", {"weights": GIB}, limit)]))
  assert not tree.find("line")
  assert tree.find("rect", "part")[0].numbers("width") == (100,)
  assert [item.all_text() for item in tree.find("li")] == ["weights"]


def test_no_memory_at_all_can_be_drawn() -> None:
  tree = read(page_bars.draw([MemoryRow("a", {"weights": 0}), MemoryRow("b", {})]))
  assert [cell.text for cell in tree.find("td", "number")] == ["0 B", "0 B"]


def test_negative_memory_is_refused() -> None:
  with pytest.raises(ValueError, match="memory of a: stash is -1"):
    MemoryRow("a", {"weights": 3, "stash": -1})
  with pytest.raises(ValueError, match="memory of a: limit is -5"):
    MemoryRow("a", {}, limit=-5)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(3, 12))
def test_marks_are_round_and_within(low: float, width: float, number: int) -> None:
  high = low + width
  if high - low < 1e-6 * abs(low):
    return
  found = marks(low, high, number)
  slack = 1e-9 * max(abs(low), abs(high))
  assert all(low - slack <= mark <= high + slack for mark in found)
  assert number / 2.5 - 1 <= len(found) <= number + 1
  if len(found) > 1:
    step = found[1] - found[0]
    digits = f"{step:.3e}"
    assert digits[0] in "125", digits
    assert found == pytest.approx(
      [found[0] + index * step for index in range(len(found))], abs=slack
    )


def test_marks_of_nothing_are_one() -> None:
  assert marks(3, 3, 5) == [3]
  assert marks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]


def test_percentages_are_short() -> None:
  assert [percent(share) for share in (0, 1, 0.125, 1 / 3)] == [
    "0%",
    "100%",
    "12.5%",
    "33.3333%",
  ]
