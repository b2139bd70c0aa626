"""Schedules by name. Drawing and files: `tfpipe.schedule.draw` and `.text`."""

from __future__ import annotations

from collections.abc import Callable

from tfpipe.schedule import gpipe, one_f_one_b
from tfpipe.schedule.action import KINDS, Action, Kind
from tfpipe.schedule.schedule import Schedule, dependencies, order
from tfpipe.schedule.validate import InFlight, in_flight, validate
from tfpipe.spelling import nearest

__all__ = [
  "KINDS",
  "NAMES",
  "Action",
  "InFlight",
  "Kind",
  "Schedule",
  "dependencies",
  "get",
  "in_flight",
  "make",
  "order",
  "validate",
]

Generator = Callable[[int, int, bool], Schedule]

_GENERATORS: dict[str, Generator] = {
  "gpipe": gpipe.schedule,
  "1f1b": one_f_one_b.schedule,
}
NAMES = tuple(_GENERATORS)


def get(name: str) -> Generator:
  """Returns the generator (num_stages, num_micro_batches, remat) of a schedule.

  Raises LookupError for an unknown name.
  """
  if name not in _GENERATORS:
    raise LookupError(
      f"schedule {name!r} is not one of {', '.join(NAMES)}{nearest(name, NAMES)}"
    )
  return _GENERATORS[name]


def make(
  name: str, num_stages: int, num_micro_batches: int, remat: bool = False
) -> Schedule:
  """Returns the named schedule; errors as of `get` and of the generator."""
  return get(name)(num_stages, num_micro_batches, remat)
