"""Curves of the page: values over steps."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

from tfpipe.program.page_axis import legend, marks, percent

__all__ = ["draw"]

MAX_POINTS = 600
"""Most points of a curve that are drawn."""
HEIGHT = 200

_Curve = Sequence[tuple[int, float]]


def draw(curves: Mapping[str, _Curve], most: int = MAX_POINTS) -> tuple[str, list[str]]:
  """Draws curves of steps and values, with a legend; nothing if no value is finite.

  Returns the drawing, and sentences on what it leaves out of curves with more points
  than `most`, an even number.
  """
  drawn: dict[str, _Curve] = {}
  notes = []
  for name, points in curves.items():
    finite = [point for point in points if math.isfinite(point[1])]
    drawn[name] = _thinned(finite, most)
    if len(finite) < len(points):
      notes.append(f"{name}: {len(points) - len(finite)} values are not finite.")
    if len(drawn[name]) < len(finite):
      notes.append(
        f"{name}: {len(finite)} values, of which the lowest and highest of each of "
        f"{most // 2} stretches are drawn."
      )
  if not any(drawn.values()):
    return "", notes
  names = legend((f"c{index % 6}", name) for index, name in enumerate(drawn))
  return names + _frame(drawn), notes


def _frame(curves: Mapping[str, _Curve]) -> str:
  """Draws curves between their axes."""
  steps = sorted({step for points in curves.values() for step, _ in points})
  values = [value for points in curves.values() for _, value in points]
  first, last = steps[0], max(steps[-1], steps[0] + 1)
  margin = 0.06 * (max(values) - min(values)) or abs(values[0]) or 1
  low, high = min(values) - margin, max(values) + margin
  # Where values are: a mark in the margin would touch the axis of steps.
  at = marks(min(values), max(values), 5)

  def across(step: float) -> float:
    return (step - first) / (last - first)

  def down(value: float) -> str:
    return f"{HEIGHT * (high - value) / (high - low):.2f}"

  lines = "".join(
    f'<polyline class="c{index % 6}" points="'
    f'{" ".join(f"{1000 * across(s):.2f},{down(v)}" for s, v in points)}"/>'
    for index, points in enumerate(curves.values())
  )
  dots = "".join(
    f'<circle class="c{index % 6}" cx="{percent(across(step))}" cy="{down(value)}" '
    'r="3"/>'
    for index, points in enumerate(curves.values())
    for step, value in (points if len(points) == 1 else ())
  )
  rules = "".join(
    f'<line x2="100%" y1="{down(mark)}" y2="{down(mark)}"/>' for mark in at
  )
  at_values = "".join(
    f'<span style="top:{down(mark)}px">{mark:g}</span>' for mark in at
  )
  at_steps = "".join(
    f'<text x="{percent(across(mark))}" y="12">{mark:,.0f}</text>'
    for mark in marks(first, last, 6)
    if mark == int(mark)
  )
  strips = "".join(_strips(curves, [across(step) for step in steps], steps))
  return (
    '<div class="curve">'
    f'<div class="values" style="height:{HEIGHT}px">{at_values}</div>'
    f'<svg height="{HEIGHT}" role="img" aria-label="Curves">{rules}'
    f'<svg viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none">{lines}</svg>'
    f"{dots}{strips}</svg><div></div>"
    f'<svg class="axis" height="16" aria-hidden="true">{at_steps}</svg></div>'
  )


def _strips(
  curves: Mapping[str, _Curve], places: Sequence[float], steps: Sequence[int]
) -> Iterator[str]:
  """Yields a strip to point at around each step, which says its values."""
  said = {step: [f"step {step}"] for step in steps}
  for name, points in curves.items():
    for step, value in points:
      said[step].append(f"{name} {value:.5g}")
  before, behind = [0.0, *places], [*places[1:], 1.0]
  for step, *near in zip(steps, before, places, behind, strict=False):
    left, right = (near[0] + near[1]) / 2, (near[1] + near[2]) / 2
    yield (
      f'<rect class="strip" x="{percent(left)}" width="{percent(right - left)}" '
      f'height="100%"><title>{html.escape(chr(10).join(said[step]))}</title></rect>'
    )


def _thinned(points: _Curve, most: int) -> _Curve:
  """Keeps of each stretch of a long curve its lowest and its highest point."""
  if len(points) <= most:
    return points
  kept = []
  number = most // 2
  for index in range(number):
    first, behind = (at * len(points) // number for at in (index, index + 1))
    by_value = sorted(points[first:behind], key=lambda point: point[1])
    kept += sorted({by_value[0], by_value[-1]})
  return kept
