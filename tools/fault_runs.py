"""Runs of the trainer as its users start it, for the fault suite."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import Checkpoint

MODEL = "tools.fault_cases.Small"
STEPS = 60
LIMIT_SECS = 300
"""No run takes longer, whatever its fault is."""


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a fault.

  Attributes:
    name: of the fault.
    passed: whether nothing was lost and the message names the place.
    said: the message, or what is wrong.
  """

  name: str
  passed: bool
  said: str


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a run ended.

  Attributes:
    code: that it ended with; None: it was still running after LIMIT_SECS.
    shown: all that it printed.
  """

  code: int | None
  shown: str

  @property
  def last(self) -> str:
    """Its last line."""
    lines = self.shown.strip().splitlines()
    return lines[-1] if lines else ""


def command(folder: pathlib.Path, *arguments: str) -> list[str]:
  """Gives the command line of a run in a folder."""
  trainer = [sys.executable, "-m", "tfpipe.trainer", f"--model={MODEL}"]
  return [*trainer, f"--logdir={folder}", "--mode=train", *arguments]


@contextlib.contextmanager
def started(
  folder: pathlib.Path, *arguments: str, before: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[str]]:
  """Starts a run; kills it at the end of the context if it is still there."""
  with subprocess.Popen(
    command(folder, *arguments),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    preexec_fn=before,
  ) as process:
    try:
      yield process
    finally:
      process.kill()


def run(
  folder: pathlib.Path, *arguments: str, before: Callable[[], None] | None = None
) -> Ended:
  """Runs to the end."""
  with started(folder, *arguments, before=before) as process:
    try:
      shown, _ = process.communicate(timeout=LIMIT_SECS)
    except subprocess.TimeoutExpired:
      return Ended(None, "")
  return Ended(process.returncode, shown)


def newest_step(folder: pathlib.Path) -> int:
  """Gives the step of the newest complete checkpoint, 0 if there is none."""
  found, _ = checkpoint_lib.newest(folder)
  return 0 if found is None else found.step


def final(folder: pathlib.Path) -> Checkpoint | None:
  """Gives the checkpoint after the last step, if it is the newest."""
  found, _ = checkpoint_lib.newest(folder)
  return found if found is not None and found.step == STEPS else None


def equal(a: Checkpoint | None, b: Checkpoint | None) -> bool:
  """Says whether two checkpoints are there and equal bit for bit."""
  return (
    a is not None
    and b is not None
    and a.arrays.keys() == b.arrays.keys()
    and all(a.arrays[n].tobytes() == b.arrays[n].tobytes() for n in a.arrays)
  )
