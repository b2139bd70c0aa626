"""One trainer per folder: a second one would overwrite its checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[None]:
  """Holds the folder; it is free again when the process ends, however it does.

  Raises:
    ValueError: another process holds it.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(
        f"--logdir={folder}: another process is training there; choose another folder"
      ) from error
    yield
  finally:
    os.close(descriptor)
