from __future__ import annotations

import re

import pytest

from tests.program.html_tree import Element, read
from tfpipe import schedule
from tfpipe.program.page import MemoryRow, PageData, Table, render
from tfpipe.schedule import Action
from tfpipe.simulate import StageTimes, simulate
from tfpipe.timeline import Span, Timeline

PARTS = (
  *("params", "results", "cut", "memory", "schedule", "timelines"),
  *("comparison", "losses", "metrics", "layers"),
)
EVIL = "<script>alert(1)</script>&\"'<b>"
F, BW, U = Action("F", 0, 0), Action("BW", 1, 7), Action("U", 1, 0)
SHORT = Timeline((Span(0, F, 5, 7), Span(1, BW, 7, 15)), 2)


def page(**data: object) -> Element:
  return read(render(PageData("a run", **data)))  # pyright: ignore[reportArgumentType]


def everything(text: str) -> PageData:
  """A page with all parts, every name in it being the text."""
  return PageData(
    title=text,
    facts={text: text},
    cut=Table((text,), ((text,),)),
    memory=[MemoryRow(text, {text: 1}, limit=2)],
    schedule=SHORT,
    timelines={text: SHORT},
    comparison=Table((text,), ((text,),)),
    losses={text: [(1, 2.0), (2, float("nan"))]},
    notes=dict.fromkeys(PARTS, text),
    layers=Table((text,), ((text,),)),
    metrics={text: {text: [(1, 2.0)]}},
    params=Table((text,), ((text,),)),
    results=Table((text,), ((text,),)),
  )


def test_the_parts_follow_each_other() -> None:
  tree = read(render(everything("x")))
  sections = tree.find("section")
  assert [section.attributes["id"] for section in sections] == list(PARTS)
  for section in sections:
    (note,) = section.find("p", "note")
    assert note.text.startswith("x")


def test_a_part_without_data_is_left_out() -> None:
  tree = page()
  assert not tree.find("section")
  assert [element.text for element in tree.find("h1")] == ["a run"]
  assert [element.text for element in tree.find("title")] == ["a run"]
  assert not page(losses={"train": []}).find("section")
  assert not page(metrics={"rate": {"train": [(1, float("nan"))]}}).find("section")


def test_text_is_never_taken_for_html() -> None:
  tree = read(render(everything(EVIL)))
  assert len(tree.find("script")) == 1
  assert not tree.find("b")
  for tag in ("h1", "dt", "dd", "th", "td", "p", "title"):
    assert any(EVIL in element.all_text() for element in tree.find(tag)), tag
  titles = [title.text for title in tree.find("h3")]
  assert titles == [f"{EVIL} ", EVIL]
  legends = {element.all_text() for element in tree.find("li")}
  assert EVIL in legends
  tips = {element.find("title")[0].text for element in tree.find("rect", "strip")}
  assert tips == {f"step 1\n{EVIL} 2"}


def test_nothing_is_asked_of_a_network() -> None:
  text = render(everything("x"))
  for sign in ("http:", "https:", "//cdn", "url(", "@import", " src=", "href"):
    assert sign not in text, sign
  tags = {element.tag for element in read(text).walk()}
  assert not tags & {"link", "img", "iframe", "object", "embed", "use", "image", "a"}
  (policy,) = read(text).find("meta", **{"http-equiv": "Content-Security-Policy"})
  assert (policy.attributes["content"] or "").startswith("default-src 'none';")


def test_the_script_ends_where_it_should() -> None:
  # "</" in a script or a style sheet would end it.
  (script,) = read(render(everything("x"))).find("script")
  assert script.text.rstrip().endswith("true);")


def test_every_class_has_a_style() -> None:
  tree = read(render(everything("x")))
  (style,) = tree.find("style")
  used = {
    name
    for element in tree.walk()
    for name in (element.attributes.get("class") or "").split()
  }
  # s0, the full colour, is what there is without a style; the script looks for parts.
  unstyled = {name for name in used if not re.search(rf"\.{name}\b", style.text)}
  assert unstyled <= {"s0", "part", "axis"}


def test_the_column_of_the_comparison_is_never_narrower_than_its_table() -> None:
  tree = read(render(everything("x")))
  (pair,) = tree.find("div", "wide-right")
  assert pair.children[0].attributes["id"] == "comparison"
  (style,) = tree.find("style")
  (columns,) = re.findall(
    r"\.wide-right \{ grid-template-columns: (.*); \}", style.text
  )
  assert columns.startswith("minmax(min-content, ")


def test_numbers_are_flush_right_and_words_are_not() -> None:
  table = Table(
    ("cell", "from", "weights", "difference"),
    (
      ("0", "0_embedding", "12.6M", "+1.71 ms (+3.7%)"),
      ("1", "12 layers more", "1.0 MiB", "-0.5 points"),
    ),
  )
  tree = page(cut=table)
  looks = [element.attributes.get("class") for element in tree.find("th")]
  assert looks == ["number", None, "number", "number"]
  cells = [element.text for element in tree.find("td")]
  assert cells == [cell for row in table.rows for cell in row]
  assert not page(cut=Table(("a", "b"), ())).find("td")


def test_each_further_quantity_has_a_small_drawing_that_says_what_it_leaves_out() -> (
  None
):
  metrics = {
    "rate": {"train": [(step, float(step % 7)) for step in range(500)]},
    "accuracy": {"train": [(1, 0.5), (2, 0.25)], "eval": [(2, 0.75)]},
  }
  (section,) = page(metrics=metrics).find("section")
  assert [title.text for title in section.find("h3")] == ["rate", "accuracy"]
  rate, accuracy = section.find("div", "curve")
  (line,) = rate.find("polyline")
  assert 50 <= len((line.attributes["points"] or "").split()) <= 100
  (note,) = section.find("p", "note")
  assert note.text == (
    "train: 500 values, of which the lowest and highest of each of 50 stretches are "
    "drawn."
  )
  assert len(accuracy.find("polyline")) == 2


def test_a_table_has_a_cell_for_each_column() -> None:
  with pytest.raises(ValueError, match=r"rows\[1\] has 1 cells, expected 2: a, b"):
    Table(("a", "b"), (("1", "2"), ("3",)))


def test_a_note_stands_below_a_part() -> None:
  with pytest.raises(ValueError, match="notes: 'loss' is not one of cut, memory"):
    PageData("a run", notes={"loss": "x"})


def test_large_schedules_are_drawn_in_part_and_this_is_said() -> None:
  made = schedule.make("1f1b", 64, 128)
  timeline = simulate(made, StageTimes.equal(64))
  text = render(PageData("big", timelines={"predicted": timeline}))
  assert len(text) < 2_000_000
  tree = read(text)
  # 128 forwards, 128 backwards, 1 update; 6000 // 257 = 23 devices.
  assert len(tree.find("rect", "span")) == 23 * 257
  names = [element.text for element in tree.find("div", "names")[0].children]
  assert (names[0], names[-1], len(names)) == ("0", "63", 23)
  (note,) = tree.find("p", "note")
  assert note.text == "predicted: 23 of 64 devices are drawn, evenly spread."


def test_long_lists_of_actions_are_cut_and_this_is_said() -> None:
  spans = [
    Span(device, Action("F", 0, index), index, index + 1)
    for device in range(3)
    for index in range(7000)
  ]
  tree = page(schedule=Timeline(tuple(spans), 3))
  assert len(tree.find("rect", "span")) == 6000
  (note,) = tree.find("p", "note")
  assert note.text == (
    "2 of 3 devices are drawn, evenly spread. Of up to 7000 actions a device, 3000 are "
    "drawn."
  )
