"""Checkpoints: one file of named arrays, visible only when complete.

Entries are named by layer, never by stage or device, so a checkpoint saved with four
partitions continues with eight, or on one device. The file is a NumPy `.npz` (a zip),
written aside and renamed: a process killed at any moment leaves the previous checkpoint
as it was. Equal runs write equal files: no time, name of a machine or folder is in it.

Each entry has a checksum (CRC-32), checked on loading together with the names of the
zip's directory, the number of entries and the step in the file's name. That finds what
accidents do to a file. It does not find a whole file of another run of the same
experiment put in its place, a forged one, or what went wrong in memory before writing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpipe import text_files
from tfpipe.cost import ArraySpec
from tfpipe.spelling import nearest

_NAME = re.compile(r"checkpoint-(\d{8,})\.npz")
_META = "__meta__"
BEST = "best.npz"
PARTIAL = "checkpoint.partial"
_SECS_OF_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A complete checkpoint.

  Attributes:
    step: mini-batches seen when it was saved.
    arrays: entry name → value.
    experiment: name of the run's experiment.
    params: text of the Params of the run that saved it.
    score: metric and value for which it is the best of its run; None but for that one.
  """

  step: int
  arrays: dict[str, np.ndarray]
  experiment: str
  params: str
  score: tuple[str, float] | None = None


def save(
  folder: pathlib.Path, checkpoint: Checkpoint, keep: int, every_hours: float = 0.0
) -> pathlib.Path:
  """Writes a checkpoint, then removes older ones.

  Args:
    folder: of the run.
    checkpoint: what to write.
    keep: how many are kept, this one among them.
    every_hours: of older ones, one for each so many hours is kept, too; 0: none is.

  Returns:
    its path.

  Raises:
    OSError: it could not be written; those that were there still are.
  """
  path = folder / f"checkpoint-{checkpoint.step:08d}.npz"
  _write(path, folder / PARTIAL, checkpoint)
  # Those of later steps, which a damaged newest one leaves behind, do not count.
  until_now = [found for found in paths(folder) if _step(found) <= checkpoint.step]
  for old in _expired(until_now, keep, every_hours):
    old.unlink(missing_ok=True)
  return path


def save_best(folder: pathlib.Path, checkpoint: Checkpoint) -> pathlib.Path:
  """Writes a checkpoint as the best one of its run, in place of the one before it.

  Training and an evaluation beside it may both do so.

  Returns:
    its path.

  Raises:
    OSError: it could not be written; the one before is still there.
  """
  path = folder / BEST
  for left in folder.glob("best.*.partial"):
    left.unlink(missing_ok=True)
  _write(path, folder / f"best.{os.getpid()}.partial", checkpoint)
  return path


def _write(path: pathlib.Path, aside: pathlib.Path, checkpoint: Checkpoint) -> None:
  """Writes a checkpoint aside and publishes it under its name."""
  path.parent.mkdir(parents=True, exist_ok=True)
  meta = {
    field.name: getattr(checkpoint, field.name)
    for field in dataclasses.fields(checkpoint)
    if field.name != "arrays"
  }
  meta["num_entries"] = len(checkpoint.arrays)
  try:
    with aside.open("wb") as file:
      arrays: dict[str, Any] = {_META: np.array(json.dumps(meta)), **checkpoint.arrays}
      np.savez(file, **arrays)
      file.flush()
      os.fsync(file.fileno())
    aside.replace(path)
    _sync_folder(path.parent)
  except OSError as error:
    # Half a file would take the room that others need on a full disk.
    with contextlib.suppress(OSError):
      aside.unlink(missing_ok=True)
    reason = f"step {checkpoint.step} could not be saved: {error.strerror or error}"
    raise OSError(error.errno or errno.EIO, reason, str(path.parent)) from error


def _expired(
  found: list[pathlib.Path], keep: int, every_hours: float
) -> list[pathlib.Path]:
  """Lists what is neither among the newest nor the first of its hours.

  What is kept for good is decided by the files alone, in order: the first, then each
  that is so many hours younger than the one kept before it, or older by a clock that
  was set back.
  """
  kept, last = set(found[-keep:]), None
  for path in found if every_hours else ():
    time = path.lstat().st_mtime
    if last is None or not 0 <= time - last < every_hours * _SECS_OF_HOUR:
      kept.add(path)
      last = time
  return [path for path in found if path not in kept]


def paths(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints in a folder, oldest first; none if there is no folder.

  Raises:
    OSError: the folder may not be read.
  """
  try:
    # `glob` takes a folder that may not be read for an empty one.
    names = os.listdir(folder)
  except (FileNotFoundError, NotADirectoryError):
    return []
  return sorted((folder / name for name in names if _NAME.fullmatch(name)), key=_step)


def saved(folder: pathlib.Path) -> str:
  """Says what has been saved in a folder."""
  found = paths(folder)
  return f"saved is step {_step(found[-1])}" if found else "nothing is saved yet"


def load(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint and checks every entry's checksum.

  Raises:
    ValueError: the file is missing, truncated or damaged.
    PermissionError: it may not be read.
  """
  what = f"{path} is not a complete checkpoint"
  if other := text_files.kind(path):  # reading a pipe would not end
    raise ValueError(f"{what}: this is {other}; remove it")
  try:
    with path.open("rb") as file:
      # NumPy would take it for a pickle, and advise to load that unsafely.
      if not file.peek(2).startswith(b"PK"):
        raise ValueError("it does not begin as a zip does")
      with np.load(file, allow_pickle=False) as entries:
        arrays = {name: entries[name] for name in entries.files}
    meta = json.loads(str(arrays.pop(_META)))
    # Damage to the zip's directory can hide entries that have no fault themselves.
    if meta.pop("num_entries") != len(arrays):
      raise ValueError("entries are missing")
    if _NAME.fullmatch(path.name) and _step(path) != meta["step"]:
      raise ValueError(f"it was saved at step {meta['step']}, under another name")
    score = meta.pop("score", None)
    return Checkpoint(arrays=arrays, score=tuple(score) if score else None, **meta)
  except (MemoryError, PermissionError):
    raise  # the file may be whole, and an older one must not be taken for it
  except OSError as error:
    raise ValueError(f"{what}: {error.strerror or error}") from error
  # What zipfile and NumPy stumble over in a damaged file can raise almost anything.
  except Exception as error:
    raise ValueError(f"{what}: {type(error).__name__}: {error}") from error


def newest(folder: pathlib.Path) -> tuple[Checkpoint | None, list[str]]:
  """Finds the newest complete checkpoint.

  Returns:
    the checkpoint, None if there is none, and a message for each damaged newer one.

  Raises:
    ValueError: there are checkpoints and none is complete.
    PermissionError: one may not be read.
  """
  damaged = []
  for path in reversed(paths(folder)):
    try:
      return load(path), damaged
    except ValueError as error:
      if not os.path.lexists(path):  # a training has removed it, and has newer ones
        return newest(folder)
      damaged.append(str(error))
  if damaged:
    raise ValueError(f"no complete checkpoint in {folder}:\n" + "\n".join(damaged))
  return None, []


def check_matches(checkpoint: Checkpoint, expected: Mapping[str, ArraySpec]) -> None:
  """Checks that a checkpoint holds exactly the entries that a run needs.

  Args:
    checkpoint: what was read.
    expected: entry name → shape and dtype.

  Raises:
    ValueError: entries are missing, unknown or of another kind; all are named.
  """
  found = specs(checkpoint)
  problems = [
    f"  missing: {name} {spec.shape}{nearest(name, found)}"
    for name, spec in expected.items()
    if name not in found
  ]
  problems += [
    f"  not in this model: {name} {spec.shape}"
    for name, spec in found.items()
    if name not in expected
  ]
  problems += [
    f"  {name}: {difference(found[name], spec)}"
    for name, spec in expected.items()
    if name in found and found[name] != spec
  ]
  if problems:
    raise ValueError(
      f"the checkpoint of step {checkpoint.step} is of another model; nothing was "
      "restored:\n" + "\n".join(problems)
    )


def specs(checkpoint: Checkpoint) -> dict[str, ArraySpec]:
  """Gives shape and dtype of every entry."""
  return {
    name: ArraySpec(array.shape, array.dtype.name)
    for name, array in checkpoint.arrays.items()
  }


def difference(found: ArraySpec, spec: ArraySpec) -> str:
  """Says how an entry differs from what a model needs."""
  if found.shape != spec.shape:
    return f"{found.shape} in the checkpoint, {spec.shape} in this model"
  return f"{found.dtype} in the checkpoint, {spec.dtype} in this model"


def _step(path: pathlib.Path) -> int:
  match = _NAME.fullmatch(path.name)
  assert match
  return int(match.group(1))


def _sync_folder(folder: pathlib.Path) -> None:
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
