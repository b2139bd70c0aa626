"""`metrics.jsonl` cut back to where a run continues."""

from __future__ import annotations

import os
import pathlib

from tfpipe.program import metrics_file
from tfpipe.program.report import show


def cut(path: pathlib.Path, step: int) -> None:
  """Removes what was written of later steps, which will come again, and half lines.

  The file is written anew aside and renamed: none of the other lines can be lost.

  Args:
    path: of the file; it may be missing.
    step: the step that the run continues from.

  Raises:
    OSError: it cannot be written.
  """
  if not path.exists():
    return
  with path.open("ab"):
    pass  # finds now whether what follows can be appended
  lines = path.read_bytes().splitlines(keepends=True)
  kept, later = [], 0
  for line in lines:
    record = metrics_file.read(line)
    if record and record.step <= step:
      kept.append(line)
    elif record:
      later += 1
  if len(kept) == len(lines):
    return
  aside = path.with_suffix(".partial")
  with aside.open("wb") as file:
    file.writelines(kept)
    file.flush()
    os.fsync(file.fileno())
  aside.replace(path)
  damaged = len(lines) - len(kept) - later
  notes = [f"{later} lines of later steps"] if later else []
  notes += [f"{damaged} damaged lines"] if damaged else []
  show(f"{path} cut back to step {step}: {' and '.join(notes)} removed")
