"""One trainer per folder: a second one would overwrite its checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import time
from collections.abc import Iterator

# Whoever looks whether a folder is held, holds it himself for an instant.
_TRIES, _PAUSE_SECS = 10, 0.05


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[None]:
  """Holds the folder; it is free again when the process ends, however it does.

  Raises:
    ValueError: another process holds it.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    if not any(_take(descriptor, fcntl.LOCK_EX, number) for number in range(_TRIES)):
      raise ValueError(
        f"--logdir={folder}: another process is training there; choose another folder"
      )
    yield
  finally:
    os.close(descriptor)


def is_held(folder: pathlib.Path) -> bool:
  """Says whether a process trains in a folder; it need not be there."""
  try:
    descriptor = os.open(folder, os.O_RDONLY)
  except FileNotFoundError:
    return False
  try:
    return not _take(descriptor, fcntl.LOCK_SH)
  finally:
    os.close(descriptor)


def _take(descriptor: int, kind: int, number: int = 0) -> bool:
  if number:
    time.sleep(_PAUSE_SECS)
  try:
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
