"""Checkpoints: one file of named arrays, visible only when complete.

Entries are named by layer, never by stage or device, so a checkpoint saved with four
partitions continues with eight, or on one device. The file is a NumPy `.npz` (a zip
with a checksum per entry), written aside and renamed: a process killed at any moment
leaves the previous checkpoint as it was.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpipe.spelling import nearest

_NAME = re.compile(r"checkpoint-(\d{8,})\.npz")
_META = "__meta__"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A complete checkpoint.

  Attributes:
    step: mini-batches seen when it was saved.
    arrays: entry name → value.
    experiment: name of the run's experiment.
    params: text of the Params of the run that saved it.
  """

  step: int
  arrays: dict[str, np.ndarray]
  experiment: str
  params: str


def save(folder: pathlib.Path, checkpoint: Checkpoint, keep: int) -> pathlib.Path:
  """Writes a checkpoint, then removes the older ones but for the last `keep - 1`.

  Returns:
    its path.
  """
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"checkpoint-{checkpoint.step:08d}.npz"
  aside = folder / "checkpoint.partial"
  meta = json.dumps(
    {
      "step": checkpoint.step,
      "experiment": checkpoint.experiment,
      "params": checkpoint.params,
      "num_entries": len(checkpoint.arrays),
    }
  )
  with aside.open("wb") as file:
    arrays: dict[str, Any] = {_META: np.array(meta), **checkpoint.arrays}
    np.savez(file, **arrays)
    file.flush()
    os.fsync(file.fileno())
  aside.replace(path)
  _sync_folder(folder)
  # Those of later steps, which a damaged newest one leaves behind, do not count.
  until_now = [found for found in paths(folder) if _step(found) <= checkpoint.step]
  for old in until_now[:-keep]:
    old.unlink()
  return path


def paths(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints in a folder, oldest first."""
  found = [
    path for path in folder.glob("checkpoint-*.npz") if _NAME.fullmatch(path.name)
  ]
  return sorted(found, key=_step)


def load(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint and checks every entry's checksum.

  Raises:
    ValueError: the file is missing, truncated or damaged.
  """
  try:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as entries:
      arrays = {name: entries[name] for name in entries.files}
    meta = json.loads(str(arrays.pop(_META)))
    # Damage to the zip's directory can hide entries that have no fault themselves.
    if meta.pop("num_entries") != len(arrays):
      raise ValueError("entries are missing")
    if _NAME.fullmatch(path.name) and _step(path) != meta["step"]:
      raise ValueError(f"it was saved at step {meta['step']}, under another name")
    return Checkpoint(arrays=arrays, **meta)
  except MemoryError:
    raise
  # What zipfile and NumPy stumble over in a damaged file can raise almost anything.
  except Exception as error:
    raise ValueError(
      f"{path} is not a complete checkpoint: {type(error).__name__}: {error}"
    ) from error


def newest(folder: pathlib.Path) -> tuple[Checkpoint | None, list[str]]:
  """Finds the newest complete checkpoint.

  Returns:
    the checkpoint, None if there is none, and a message for each damaged newer one.

  Raises:
    ValueError: there are checkpoints and none is complete.
  """
  damaged = []
  for path in reversed(paths(folder)):
    try:
      return load(path), damaged
    except ValueError as error:
      damaged.append(str(error))
  if damaged:
    raise ValueError(f"no complete checkpoint in {folder}:\n" + "\n".join(damaged))
  return None, []


def check_matches(
  checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]]
) -> None:
  """Checks that a checkpoint holds exactly the entries that a run needs.

  Args:
    checkpoint: what was read.
    expected: entry name → shape.

  Raises:
    ValueError: entries are missing, unknown or of another shape; all are named.
  """
  found = {name: array.shape for name, array in checkpoint.arrays.items()}
  problems = [
    f"  missing: {name} {shape}{nearest(name, found)}"
    for name, shape in expected.items()
    if name not in found
  ]
  problems += [
    f"  not in this model: {name} {shape}"
    for name, shape in found.items()
    if name not in expected
  ]
  problems += [
    f"  {name}: {found[name]} in the checkpoint, {shape} in this model"
    for name, shape in expected.items()
    if name in found and found[name] != tuple(shape)
  ]
  if problems:
    raise ValueError(
      f"the checkpoint of step {checkpoint.step} is of another model; nothing was "
      "restored:\n" + "\n".join(problems)
    )


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
