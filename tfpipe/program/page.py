"""One HTML page about a run: plan, schedule, timelines, memory and loss.

The page is complete in itself: style, script and drawings are in it, and it asks
nothing of a network. The drawings are those of the modules `page_*`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tfpipe.program import page_bars, page_curves, page_timelines
from tfpipe.program.page_axis import Scale, seconds
from tfpipe.program.page_bars import MemoryRow
from tfpipe.program.page_style import SCRIPT, STYLE
from tfpipe.timeline import Timeline

__all__ = ["MemoryRow", "PageData", "Table", "render"]

# 12, -1.5 GiB, 3.4 GFLOP, 25.8%, 12.6M, +1.71 ms (+3.7%)
_NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]?\d+)?%?( ?[A-Za-z]{1,7})?( \(.*\))?")


@dataclass(frozen=True)
class Table:
  """Text in rows and columns.

  Raises ValueError for a row that does not have a cell for each column.
  """

  columns: Sequence[str]
  rows: Sequence[Sequence[str]]

  def __post_init__(self) -> None:
    for index, row in enumerate(self.rows):
      if len(row) != len(self.columns):
        raise ValueError(
          f"rows[{index}] has {len(row)} cells, expected {len(self.columns)}: "
          f"{', '.join(self.columns)}"
        )


@dataclass(frozen=True)
class PageData:
  """What the page shows; a part that is empty is left out.

  Attributes:
    title: what ran.
    facts: name and value, as the experiment, the schedule, K, M and the devices.
    cut: the cells.
    layers: the layers of each cell.
    memory: one row for each device.
    schedule: its actions in ticks, all stages being equal.
    timelines: one step each, in seconds, as predicted and measured, top first.
    comparison: of the timelines.
    losses: for each curve, as train and eval, steps and values.
    notes: sentences below a part, by its name here, as below "comparison" how many
      steps were measured.
    metrics: name of each further quantity → curves, as losses.
    params: where the Params of runs differ.
    results: the last values of runs.

  Raises ValueError for a note below no part.
  """

  title: str
  facts: Mapping[str, str] = field(default_factory=dict)
  cut: Table | None = None
  memory: Sequence[MemoryRow] = ()
  schedule: Timeline | None = None
  timelines: Mapping[str, Timeline] = field(default_factory=dict)
  comparison: Table | None = None
  losses: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
  notes: Mapping[str, str] = field(default_factory=dict)
  layers: Table | None = None
  metrics: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]] = field(
    default_factory=dict
  )
  params: Table | None = None
  results: Table | None = None

  def __post_init__(self) -> None:
    for part in self.notes:
      if part not in _HEADINGS:
        raise ValueError(f"notes: {part!r} is not one of {', '.join(_HEADINGS)}")


_HEADINGS = {
  "cut": "Cut",
  "memory": "Memory of each device",
  "schedule": "Schedule",
  "timelines": "Timeline of a step",
  "comparison": "Predicted and measured",
  "losses": "Loss by step",
  "metrics": "Further quantities by step",
  "params": "Params that differ",
  "results": "Last values",
  "layers": "Layers",
}
_MOST_POINTS = 100
"""Of a curve of the small drawings, of which there are many."""


def render(data: PageData) -> str:
  """Returns the page as HTML text.

  Drawings of long schedules and curves leave something out, and say what.
  """
  title = html.escape(data.title)
  facts = "".join(
    f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
    for name, value in data.facts.items()
  )
  body = [
    f'<header><h1>{title}</h1><dl class="facts">{facts}</dl></header>',
    _pair("wide-left", _of(data, "params", "tall"), _of(data, "results", "tall")),
    _pair("wide-left", _of(data, "cut", "tall"), _memory(data)),
    _schedule(data),
    _timelines(data),
    _pair("wide-right", _of(data, "comparison"), _losses(data)),
    _metrics(data),
    _of(data, "layers", "tall"),
  ]
  return (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    # Nothing but what is in the page may be loaded or run.
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f"<title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n"
    f"{''.join(part + chr(10) for part in body if part)}"
    f"<script>{SCRIPT}</script>\n</body></html>\n"
  )


def _pair(look: str, *sections: str) -> str:
  """Puts sections beside each other where there is room."""
  inside = "".join(sections)
  return f'<div class="pair {look}">{inside}</div>' if inside else ""


def _section(data: PageData, name: str, inside: str, notes: Iterable[str] = ()) -> str:
  """Puts a heading above a part, and below it what there is to note."""
  said = " ".join(note for note in (data.notes.get(name, ""), *notes) if note)
  note = f'<p class="note">{html.escape(said)}</p>' if said else ""
  return f'<section id="{name}"><h2>{_HEADINGS[name]}</h2>{inside}{note}</section>'


def _of(data: PageData, name: str, look: str = "") -> str:
  """Shows the table of a part, if there is one."""
  table = getattr(data, name)
  if table is None:
    return ""
  inside = f'<div class="{f"scroll {look}".strip()}">{_table(table)}</div>'
  return _section(data, name, inside)


def _memory(data: PageData) -> str:
  return _section(data, "memory", page_bars.draw(data.memory)) if data.memory else ""


def _schedule(data: PageData) -> str:
  if data.schedule is None:
    return ""
  ticks = Scale("", 1)
  return _section(data, "schedule", *page_timelines.draw({"": data.schedule}, ticks))


def _timelines(data: PageData) -> str:
  if not data.timelines:
    return ""
  scale = seconds(max(step.makespan for step in data.timelines.values()))
  return _section(data, "timelines", *page_timelines.draw(data.timelines, scale))


def _losses(data: PageData) -> str:
  drawing, notes = page_curves.draw(data.losses)
  return _section(data, "losses", drawing, notes) if drawing or notes else ""


def _metrics(data: PageData) -> str:
  """Draws a small picture of each quantity."""
  parts = []
  for name, curves in data.metrics.items():
    drawing, notes = page_curves.draw(curves, _MOST_POINTS)
    if drawing:
      title = html.escape(name)
      note = f'<p class="note">{html.escape(" ".join(notes))}</p>' if notes else ""
      parts.append(f"<div><h3>{title}</h3>{drawing}{note}</div>")
  inside = f'<div class="small">{"".join(parts)}</div>'
  return _section(data, "metrics", inside) if parts else ""


def _table(table: Table) -> str:
  """Makes a table; columns of numbers are flush right."""
  columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
  classes = [
    ' class="number"' if cells and all(map(_NUMBER.fullmatch, cells)) else ""
    for cells in columns
  ]

  def line(tag: str, cells: Sequence[str]) -> str:
    inside = "".join(
      f"<{tag}{look}>{html.escape(cell)}</{tag}>"
      for look, cell in zip(classes, cells, strict=True)
    )
    return f"<tr>{inside}</tr>"

  rows = "".join(line("td", row) for row in table.rows)
  head = line("th", table.columns)
  return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
