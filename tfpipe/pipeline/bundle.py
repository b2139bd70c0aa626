"""Values of a cell that its calls hand on as one packed value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

Wire: TypeAlias = tuple[str | int, ...]
"""Name of a value; see `cell_function`."""


@dataclasses.dataclass(frozen=True)
class Bundle:
  """Values that are handed on as one.

  Attributes:
    wires: their names, in order.
  """

  wires: tuple[Wire, ...]


def bundles(wires: Sequence[Wire]) -> list[Bundle]:
  """Bundles values: as one, or none if there are none."""
  return [Bundle(tuple(wires))] if wires else []
