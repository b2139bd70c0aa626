"""What a program compiled by XLA does where, read from its text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_OP = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_ONE = re.compile(r"(?:to_apply|calls|body|condition)=%?([\w.\-]+)")
_PRODUCT = re.compile(r"matmul|conv|dot", re.IGNORECASE)
# Set to what it was, as top-k sets one, a dimension stays static, and has no "<=".
_DYNAMIC = re.compile(r"\[[^\]\s]*<=|PadToStatic|SliceToDynamic")


@dataclasses.dataclass(frozen=True)
class Place:
  """Where an operation is: in which branch of which conditional; -1 for none.

  Attributes:
    conditional: counted in the order of the text.
    branch: of it.
    num_branches: that it has.
  """

  conditional: int = -1
  branch: int = -1
  num_branches: int = 0


class Program:
  """The computations of a program.

  Args:
    text: as XLA prints HLO.

  Raises:
    ValueError: there is no entry in it.
  """

  def __init__(self, text: str) -> None:
    self._lines: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in text.splitlines():
      head = _HEAD.match(line)
      if head:
        name = head[2]
        self._lines[name] = []
        entry = name if head[1] else entry
      elif name:
        self._lines[name].append(line)
    if not entry:
      raise ValueError("the text has no ENTRY computation")
    self._entry = entry
    self._count = 0

  def products(self) -> list[tuple[Place, str]]:
    """Lists matrix products and convolutions, as often as they are called for."""
    self._count = 0
    return list(self._walk(self._entry, Place()))

  def dynamic(self) -> list[str]:
    """Lists the lines in which a shape is known at run time only."""
    lines = (line for own in self._lines.values() for line in own)
    return [line.strip() for line in lines if _DYNAMIC.search(line)]

  def _walk(self, name: str, place: Place) -> Iterator[tuple[Place, str]]:
    for line in self._lines.get(name, ()):
      kind = _kind(line)
      if kind in ("dot", "convolution") or (
        kind == "custom-call" and _PRODUCT.search(line)
      ):
        yield place, line.strip()
      if kind == "conditional":
        branches, number = _branches(line), self._count
        self._count += 1
        for index, branch in enumerate(branches):
          inside = Place(number, index, len(branches))
          # A stage's own branches belong to the stage.
          yield from self._walk(branch, place if place.branch >= 0 else inside)
      else:
        for other in _ONE.findall(line):
          yield from self._walk(other, place)


def _kind(line: str) -> str:
  found = _OP.match(line)
  return found[1] if found else ""


def _branches(line: str) -> list[str]:
  found = re.search(r"branch_computations=\{([^}]*)\}", line)
  if found:
    return [name.strip().lstrip("%") for name in found[1].split(",")]
  both = [re.search(rf"{w}_computation=%?([\w.\-]+)", line) for w in ("true", "false")]
  return [match[1] for match in both if match]
