"""Memory bars of the page: one for each device, all to one scale."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfpipe.program.page_axis import legend, percent
from tfpipe.units import format_bytes

__all__ = ["MemoryRow", "draw"]

_NUM_COLOURS = 9
"""Of parts, in the style sheet: one for each kind of memory that a plan knows."""


@dataclass(frozen=True)
class MemoryRow:
  """Memory of a device.

  Attributes:
    name: of the device.
    parts: what is kept, and its bytes.
    limit: bytes that the device has; 0 if not known.

  Raises ValueError for a negative number of bytes.
  """

  name: str
  parts: Mapping[str, int]
  limit: int = 0

  def __post_init__(self) -> None:
    for part, size in (*self.parts.items(), ("limit", self.limit)):
      if size < 0:
        raise ValueError(f"memory of {self.name}: {part} is {size}: expected >= 0")

  @property
  def total(self) -> int:
    """Bytes of all parts."""
    return sum(self.parts.values())


def draw(rows: Sequence[MemoryRow]) -> str:
  """Draws the parts of each device end to end, and a line where its memory ends."""
  names = list(dict.fromkeys(name for row in rows for name in row.parts))
  most = max(row.total for row in rows)
  # A limit far beyond all bars would leave no room for them.
  near = [row.limit for row in rows if 0 < row.limit <= 3 * most]
  scale = max([most, *near]) or 1
  looks = {name: f"m{index % _NUM_COLOURS}" for index, name in enumerate(names)}
  lines = "".join(_line(row, looks, scale) for row in rows)
  items = [(look, name) for name, look in looks.items()]
  if near:
    items.append(("", "line: what the device has"))
  return (
    f'{legend(items)}<div class="scroll tall"><table class="bars"><tbody>{lines}'
    "</tbody></table></div>"
  )


def _line(row: MemoryRow, looks: Mapping[str, str], scale: int) -> str:
  left, parts = 0, []
  for name, size in row.parts.items():
    parts.append(
      f'<rect class="part {looks[name]}" x="{percent(left / scale)}" '
      f'width="{percent(size / scale)}" height="14">'
      f"<title>{html.escape(name)}: {format_bytes(size)}</title></rect>"
    )
    left += size
  if 0 < row.limit <= scale:
    x = percent(row.limit / scale)
    parts.append(f'<line class="limit" x1="{x}" x2="{x}" y2="14"/>')
  total = format_bytes(row.total)
  if row.limit:
    total += f" of {format_bytes(row.limit)}"
  bar = f'<svg height="14" role="img" aria-label="{total}">{"".join(parts)}</svg>'
  return (
    f"<tr><td>{html.escape(row.name)}</td><td>{bar}</td>"
    f'<td class="number">{total}</td></tr>'
  )
