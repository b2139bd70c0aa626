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


Item: TypeAlias = Wire | Bundle
"""What one tensor of a call stands for."""


def bundles(wires: Sequence[Wire], *, packs: bool) -> list[Item]:
  """Bundles values: as one, or none if there are none; without `packs` leaves them."""
  if not packs:
    return list(wires)
  return [Bundle(tuple(wires))] if wires else []


def wires_of(item: Item) -> tuple[Wire, ...]:
  """Gives the names of the values that one tensor of a call stands for."""
  return item.wires if isinstance(item, Bundle) else (item,)
