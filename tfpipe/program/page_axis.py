"""What the drawings of the page share: scales, round values and the legend.

Horizontal places and lengths are percentages, so that a drawing fills any width while
its text keeps its size; vertical ones are pixels. Looks are classes of `page_style`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import NamedTuple

from tfpipe.timeline import Secs

__all__ = ["Scale", "legend", "marks", "percent", "seconds"]


class Scale(NamedTuple):
  """How times are written: the name of a unit, and how many make one second."""

  unit: str
  per_sec: float

  def text(self, secs: Secs) -> str:
    """Returns a time with five significant digits."""
    return f"{float(secs) * self.per_sec:.5g} {self.unit}".rstrip()


def seconds(longest: Secs) -> Scale:
  """Returns the scale in which a step this long is easy to read."""
  scales = (Scale("s", 1), Scale("ms", 1e3), Scale("us", 1e6), Scale("ns", 1e9))
  fitting = (scale for scale in scales if float(longest) * scale.per_sec >= 1)
  return next(fitting, scales[0])


def percent(share: Secs) -> str:
  """Returns a share of 1 as an attribute, to a millionth of the whole."""
  return f"{float(100 * share):.4f}".rstrip("0").rstrip(".") + "%"


def marks(low: float, high: float, number: int) -> list[float]:
  """Returns round values from low to high, about `number` of them."""
  if high <= low:
    return [low]
  rough = (high - low) / number
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= rough)
  indexes = range(math.ceil(low / step), math.floor(high / step) + 1)
  return [float(f"{index * step:.12g}") for index in indexes]


def legend(items: Iterable[tuple[str, str]]) -> str:
  """Explains looks: class and text of each; one without a class is only text."""
  box = '<svg aria-hidden="true"><rect class="{}" width="10" height="10"/></svg>'
  inside = "".join(
    f"<li>{box.format(look) if look else ''}{html.escape(name)}</li>"
    for look, name in items
  )
  return f'<ul class="legend">{inside}</ul>'
