"""Reads what XLA's compiler reports of a TPU program's memory."""

from __future__ import annotations

import dataclasses
import math
import re

_SPACE = re.compile(r"^Memory Space: (\w+)")
_TOTAL = re.compile(r"^Total bytes: (\d+)")
_ROW = re.compile(r"^ *[\d.]+\S+\( *\d+%\); +([\d.]+)(B|KiB|MiB|GiB); .*; *\d+; (.*)$")
_SHAPE = re.compile(r"(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_ALLOCATION = re.compile(r"^ *allocation \d+: size \d+, (.*)$")
_VALUE = re.compile(r"^ *value: .*\(size=(\d+),offset=(\d+)\)")
_SMALL = 1024
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MOST = 3


@dataclasses.dataclass(frozen=True)
class CoreMemory:
  """What a program needs of the large memory of a core (HBM).

  Attributes:
    total: bytes.
    tiling: how many times as large its arrays are as their numbers: rows of a core's
      tiles hold 128, and an array of fewer is padded.
    largest: the largest places, as (bytes, largest shape that is there at some time).
  """

  total: int
  tiling: float
  largest: tuple[tuple[int, str], ...]


def read(text: str) -> CoreMemory:
  """Reads a report, a file `*memory-usage-report.txt` of XLA's dump.

  Each row of its tables is a place, and what is there one after the other. Places may
  overlap, at different times.

  Raises:
    ValueError: it tells nothing of that memory.
  """
  space, total, rows = "", 0, []
  for line in text.splitlines():
    begun = _SPACE.match(line)
    space = begun[1] if begun else space
    if space != "default":
      continue
    total = int(found[1]) if (found := _TOTAL.match(line)) else total
    row = _ROW.match(line)
    shapes = _SHAPE.finditer(row[3]) if row else ()
    found = [(_bytes(shape[2], shape[3]), shape[0]) for shape in shapes]
    if row and found:
      rows.append((round(float(row[1]) * _UNITS[row[2]]), *max(found)))
  if not rows or not total:
    raise ValueError("the report of memory tells nothing of the memory 'default'")
  rows.sort(reverse=True)
  # A place may be a little smaller than its array, for its size is printed rounded.
  plain = sum(min(size, own) for size, own, _ in rows)
  return CoreMemory(
    total=total,
    tiling=sum(size for size, _, _ in rows) / max(plain, 1),
    largest=tuple((size, shape) for size, _, shape in rows[:_MOST]),
  )


def arrays(text: str) -> int:
  """Adds up the bytes of the large memory in which an array lies at some time.

  Scalars and the tuples of branches are apart: each takes up to 16 KiB there, which is
  much of a small program and little of a large one.

  Args:
    text: of XLA's buffer assignment, a file `*-buffer-assignment.txt` of its dump.
  """
  allocations: list[list[tuple[int, int]]] = []
  own = False
  for line in text.splitlines():
    if begun := _ALLOCATION.match(line):
      # Other memories have a color.
      allocations.append([])
      own = "color" not in begun[1] and "thread-local" not in begun[1]
    elif (value := _VALUE.match(line)) and own and int(value[1]) > _SMALL:
      allocations[-1].append((int(value[2]), int(value[2]) + int(value[1])))
  return sum(_covered(places) for places in allocations)


def _covered(places: list[tuple[int, int]]) -> int:
  """Gives the length of what some places cover together."""
  total = end = 0
  for first, behind in sorted(places):
    total += max(0, behind - max(first, end))
    end = max(end, behind)
  return total


def _bytes(bits: str | None, dims: str) -> int:
  count = math.prod(int(dim) for dim in dims.split(",") if dim)
  return count * max(int(bits or 8), 8) // 8
