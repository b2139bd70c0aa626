"""Evaluation beside a running training: of each newest checkpoint, until the last."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from tfpipe import params_text
from tfpipe.program import checkpoint, run_folder, stop
from tfpipe.program.lock import is_held
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.program.train import Trainer, restore_newest

_POLL_SECS = 2.0
_WAITS = "waiting for one; SIGINT (Ctrl-C) ends this"


def watch(
  run: Run,
  trainer: Trainer,
  folder: pathlib.Path,
  wait: Callable[[], None] = lambda: time.sleep(_POLL_SECS),
) -> None:
  """Evaluates until the training's last step has been, or it has ended before.

  Checkpoints that another has followed meanwhile are left out, and steps that have been
  evaluated before. A training that was killed may go on: it is waited for. So is one
  that had ended before the watch began, for it may be about to continue.

  Args:
    run: what is evaluated.
    trainer: evaluates it.
    folder: of the training; it need not be there yet.
    wait: waits before the next look.

  Raises:
    ValueError: the checkpoints are damaged, or of another model.
  """
  show(f"watching {folder}")
  seen: list[pathlib.Path] = []
  evaluated, alone = -1, False
  earlier = run_folder.ended(folder)
  while True:
    # Before the checkpoints: what ends has saved its last one.
    trains = is_held(folder)
    end = run_folder.ended(folder)
    has_ended = not trains and end.why and end != earlier
    found = checkpoint.paths(folder)
    if found[-1:] != seen[-1:] and _restore(run, folder, found):
      seen = found
      if run.step != evaluated:  # else a damaged one has followed
        _evaluate(trainer, run.step)
        evaluated = run.step
    last = max_steps(folder)
    # While a process trains, the last step may be that of the training before.
    if seen and last is not None and run.step >= last and not trains:
      show(f"evaluated the last step of the training, {last}")
      return
    if has_ended and found[-1:] == seen[-1:]:
      show(f"the training has ended before its last step: {end.why}")
      return
    stop.at(f"watching {folder}")
    if not (trains or alone):
      before = f", where one has ended ({end.why})" if end.why else ""
      show(f"no process trains in {folder}{before}: {_WAITS}")
    alone = not trains
    wait()


def max_steps(folder: pathlib.Path) -> int | None:
  """Gives the last step of the training in a folder; None while it is not known."""
  path = folder / "params.txt"
  try:
    entries = params_text.read(path.read_text())
    return int(entries["train.max_steps"])
  except (OSError, KeyError, ValueError):  # it is just being written
    return None


def _evaluate(trainer: Trainer, step: int) -> None:
  if trainer.is_evaluated(step):
    show(f"step {step} has been evaluated before")
  else:
    trainer.evaluate()


def _restore(run: Run, folder: pathlib.Path, found: list[pathlib.Path]) -> bool:
  try:
    return restore_newest(run, folder, trains=False)
  except ValueError:
    if checkpoint.paths(folder) == found:
      raise
    return False  # the training has removed the one that was being read
