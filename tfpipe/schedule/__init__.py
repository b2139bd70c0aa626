"""Schedules by name. Drawing and files: `tfpipe.schedule.draw` and `.text`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tfpipe import text_files
from tfpipe.schedule import (
  chimera,
  dualpipe_v,
  eager_1f1b,
  gpipe,
  interleaved,
  looped_bfs,
  one_f_one_b,
  text,
  zb_interleaved,
  zb_v,
  zero_bubble,
)
from tfpipe.schedule.action import KINDS, Action, Kind
from tfpipe.schedule.generate import SizeError, without_needless_recomputation
from tfpipe.schedule.memory import InFlight, in_flight
from tfpipe.schedule.schedule import Schedule, dependencies, order
from tfpipe.schedule.validate import validate
from tfpipe.spelling import nearest

__all__ = [
  "KINDS",
  "NAMES",
  "OPTIONS",
  "Action",
  "InFlight",
  "Kind",
  "Schedule",
  "SizeError",
  "dependencies",
  "get",
  "in_flight",
  "is_file",
  "make",
  "num_stages",
  "order",
  "read",
  "validate",
  "without_needless_recomputation",
]

Generator = Callable[..., Schedule]


class _Named(NamedTuple):
  generator: Generator
  options: tuple[str, ...] = ()


_GENERATORS: dict[str, _Named] = {
  "gpipe": _Named(gpipe.schedule),
  "1f1b": _Named(one_f_one_b.schedule),
  "eager_1f1b": _Named(eager_1f1b.schedule),
  "interleaved": _Named(interleaved.schedule, ("stages_per_device", "group_size")),
  "looped_bfs": _Named(looped_bfs.schedule, ("stages_per_device",)),
  "zb_h1": _Named(zero_bubble.h1),
  "zb_h2": _Named(zero_bubble.h2),
  "zb_v": _Named(zb_v.schedule, ("stages_per_device",)),
  "zb_interleaved": _Named(
    zb_interleaved.schedule, ("stages_per_device", "group_size")
  ),
  "chimera": _Named(chimera.schedule, ("num_pairs",)),
  "chimera_doubling": _Named(chimera.doubling, ("num_pairs",)),
  "chimera_halving": _Named(chimera.halving, ("num_pairs",)),
  "dualpipe_v": _Named(dualpipe_v.schedule, ("stages_per_device",)),
}
NAMES = tuple(_GENERATORS)
OPTIONS = {name: named.options for name, named in _GENERATORS.items()}
"""Which of `make`'s options each schedule has."""


def get(name: str) -> Generator:
  """Returns the generator (num_devices, num_micro_batches, remat, *, its options).

  Raises LookupError for an unknown name.
  """
  if name not in _GENERATORS:
    raise LookupError(
      f"schedule {name!r} is not one of {', '.join(NAMES)}, nor the path of a .csv or "
      f".json file{nearest(name, NAMES)}"
    )
  return _GENERATORS[name].generator


def make(
  name: str,
  num_devices: int,
  num_micro_batches: int,
  remat: bool = False,
  *,
  stages_per_device: int = 0,
  group_size: int = 0,
  num_pairs: int = 0,
) -> Schedule:
  """Returns the named schedule, or the one in a file.

  Args:
    name: one of NAMES, or the path of a file as `text.to_csv` (.csv) or `text.to_json`
      (.json) writes. A file must have the numbers of devices and micro-batches that are
      given, and recompute or not as `remat` says.
    num_devices: devices of the pipeline.
    num_micro_batches: micro-batches of a step.
    remat: whether a stage recomputes its forward before each backward.
    stages_per_device: 0 for the schedule's own default.
    group_size: 0 for the schedule's own default.
    num_pairs: 0 for the schedule's own default.

  Raises LookupError for an unknown name, OSError for a file that cannot be read, and
  ValueError for an option that the schedule does not have (OPTIONS), for a value it
  does not allow (SizeError), and for a file that is not sound.
  """
  options = {
    "stages_per_device": stages_per_device,
    "group_size": group_size,
    "num_pairs": num_pairs,
  }
  given = {option: value for option, value in options.items() if value != 0}
  generator = None if is_file(name) else get(name)
  allowed = OPTIONS.get(name, ())
  for option, value in given.items():
    if option not in allowed:
      raise ValueError(
        f"{name}: {option} is {value!r}, but this schedule has "
        f"{'only ' + ' and '.join(allowed) if allowed else 'no options'}"
      )
  if generator is None:
    return read(name, num_devices, num_micro_batches, remat)
  return generator(num_devices, num_micro_batches, remat, **given)


def is_file(name: str) -> bool:
  """Returns whether a schedule's name is the path of a file."""
  return name.endswith((".csv", ".json"))


def read(path: str, num_devices: int, num_micro_batches: int, remat: bool) -> Schedule:
  """Reads a schedule from a file; arguments and errors as of `make`.

  Its sizes are compared with the given ones before anything is made of that size.
  """
  parse = text.from_csv if path.endswith(".csv") else text.from_json
  try:
    schedule = parse(text_files.read(path))
    for field, given, found in (
      ("num_partitions", num_devices, schedule.num_devices),
      ("num_micro_batches", num_micro_batches, schedule.num_micro_batches),
    ):
      if given != found:
        raise ValueError(f"{field} is {given!r}, but the file's is {found!r}")
    validate(schedule)
    recomputes = any(a.kind == "R" for actions in schedule.actions for a in actions)
    if recomputes and not remat:
      raise ValueError("the file recomputes each cell: expected remat=cell")
    if remat and not recomputes:
      raise ValueError("the file has no recomputation: expected remat=none, or layer")
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return schedule


def num_stages(name: str, num_devices: int, stages_per_device: int = 0) -> int:
  """Returns the stages of a named schedule, without making it; options as of `make`."""
  own = (get(name).__kwdefaults__ or {}).get("stages_per_device", 1)
  return num_devices * (stages_per_device or own)
