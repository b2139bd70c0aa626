"""The file `metrics.jsonl` of a run: a record a line."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from tfpipe import text_files

Curves: TypeAlias = dict[str, dict[str, list[tuple[int, float]]]]
"""Name of a value → kind, as `train` or `eval` → steps and values."""


class Record(NamedTuple):
  """What a line says.

  Attributes:
    kind: `train`, `eval`, ...
    step: that it is of.
    values: name → number; those that were not finite are left out.
  """

  kind: str
  step: int
  values: Mapping[str, float]


def read(line: bytes) -> Record | None:
  """Reads a line with its end; None if it is damaged."""
  try:
    fields = text_files.from_json(line.decode())
  except ValueError:
    return None
  if not isinstance(fields, dict) or not line.endswith(b"\n"):
    return None
  kind, step = fields.pop("kind", None), fields.pop("step", None)
  if not isinstance(kind, str) or not isinstance(step, int) or isinstance(step, bool):
    return None
  numbers = {n: v for n, v in fields.items() if isinstance(v, (int, float))}
  return Record(kind, step, numbers)


class MetricsFile:
  """Appends to the file, and reads it."""

  def __init__(self, folder: pathlib.Path) -> None:
    self._path = folder / "metrics.jsonl"

  def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
    """Writes a record; `kind` is `train` or `eval`. What is not finite is null."""
    # JSON has no NaN and no infinity.
    finite = {n: v if math.isfinite(v) else None for n, v in values.items()}
    record = {"kind": kind, "step": step, **finite}
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with self._path.open("ab+") as file:
      # Half a line, which a kill or a full disk has left, must not take this one along.
      if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        line = line if file.read() == b"\n" else b"\n" + line
      file.write(line)

  def curves(self) -> Curves:
    """Reads what has been written so far; of a step that was repeated the last.

    Damaged lines are left out, and so is a last one without an end: it is being
    written, or was when its run was killed.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for record in filter(None, map(read, self._lines())):
      for name, value in record.values.items():
        found.setdefault(name, {}).setdefault(record.kind, {})[record.step] = value
    return {
      name: {kind: sorted(points.items()) for kind, points in by_kind.items()}
      for name, by_kind in found.items()
    }

  def check(self) -> None:
    """Refuses a file with a damaged line.

    Raises:
      ValueError: naming it.
    """
    for number, line in enumerate(self._lines(), 1):
      if line.endswith(b"\n") and read(line) is None:
        raise ValueError(f"{self._path}: line {number} is no record of metrics")

  def _lines(self) -> list[bytes]:
    if not self._path.exists():
      return []
    return self._path.read_bytes().splitlines(keepends=True)
