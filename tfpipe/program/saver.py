"""Saving while training goes on: a thread writes what was copied after a step."""

from __future__ import annotations

import math
import pathlib
import shutil
import time
from collections.abc import Mapping
from concurrent import futures
from types import TracebackType

from tfpipe import saving
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.units import format_bytes

_SECS_OF_MINUTE = 60.0


class Saver:
  """Saves a run when it is time to; leaving its context waits for the last file.

  The state is copied to the host between two steps; one copy at a time is being
  written. What goes wrong in the thread is raised by the next `check`, `save` or exit.
  """

  def __init__(self, run: Run, folder: pathlib.Path) -> None:
    self._run = run
    self._folder = folder
    self._p = run.params.train
    self._saved_step = run.step
    self._time = time.monotonic()
    self._thread = futures.ThreadPoolExecutor(1, "saver")
    self._pending: futures.Future[pathlib.Path] | None = None
    self._score = math.nan
    self._scored: tuple[int, ...] = ()  # version of best.npz that has this score

  def __enter__(self) -> Saver:
    self._time = time.monotonic()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    try:
      self._wait()
    except OSError as failed:
      if error is None:
        raise
      show(f"{failed.filename}: {failed.strerror}")  # the first error is the one raised

  def check_space(self) -> None:
    """Checks that a checkpoint fits on the disk.

    Raises:
      ValueError: naming what is free and what is needed.
    """
    folder = self._folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    left = self._folder / checkpoint_lib.PARTIAL
    if left.exists():
      free += left.stat().st_size  # a killed run's, which the next save overwrites
    needed = self._run.num_bytes()
    if free < needed:
      raise ValueError(
        f"--logdir={self._folder}: {format_bytes(free)} are free there, and a "
        f"checkpoint takes {format_bytes(needed)}"
      )

  def is_due(self, step: int) -> bool:
    """Says whether the state after a step is to be saved."""
    secs = self._p.save_interval_minutes * _SECS_OF_MINUTE
    late = bool(secs) and time.monotonic() - self._time >= secs
    return late or step % self._p.save_interval_steps == 0

  def save(self) -> None:
    """Copies the state and starts to write it, unless this step has been saved.

    Raises:
      OSError: the one before could not be written.
    """
    step = self._run.step
    if step == self._saved_step:
      return
    self._wait()
    p, checkpoint = self._p, self._run.checkpoint()
    self._pending = self._thread.submit(
      checkpoint_lib.save,
      self._folder,
      checkpoint,
      p.keep_checkpoints,
      p.keep_every_hours,
    )
    self._saved_step = step
    self._time = time.monotonic()

  def check(self) -> None:
    """Shows what has been saved since the last call.

    Raises:
      OSError: it could not be written.
    """
    if self._pending and self._pending.done():
      self._wait()

  def save_if_best(self, values: Mapping[str, float]) -> None:
    """Saves the state as the best so far, if it is.

    Args:
      values: what its evaluation gave.

    Raises:
      OSError: it could not be written.
    """
    best = saving.best(self._p)
    if best is None:
      return
    value = values[best.metric]
    if not best.is_better(value, self._score_of_best(best.metric)):
      return
    self._wait()
    score = best.metric, value
    path = checkpoint_lib.save_best(self._folder, self._run.checkpoint(score))
    show(f"saved {path}: {best.metric}={value:.5g} is the best so far")

  def _score_of_best(self, metric: str) -> float:
    """Gives the score of best.npz, which an evaluation beside may have replaced."""
    try:
      found = (self._folder / checkpoint_lib.BEST).stat()
      version = found.st_ino, found.st_mtime_ns
    except FileNotFoundError:
      version = ()
    if version != self._scored:
      self._score, self._scored = _score(self._folder, metric), version
    return self._score

  def _wait(self) -> None:
    pending, self._pending = self._pending, None
    if pending:
      show(f"saved {pending.result()}")


def _score(folder: pathlib.Path, metric: str) -> float:
  """Gives the value for which best.npz is the best by a metric, NaN if it is not."""
  path = folder / checkpoint_lib.BEST
  if not path.exists():
    return math.nan
  try:
    score = checkpoint_lib.load(path).score
  except ValueError as error:
    show(f"skipped: {error}")
    return math.nan
  return score[1] if score and score[0] == metric else math.nan
