"""Kills (-9) of a run at random moments, half of them inside a save."""

from __future__ import annotations

import pathlib
import random
import re
import subprocess
import time

from tfpipe.program.checkpoint import Checkpoint
from tools.fault_runs import (
  LIMIT_SECS,
  STEPS,
  Outcome,
  equal,
  final,
  newest_step,
  started,
)
from tools.fault_runs import run as run_to_end

LAYOUTS = (
  ("--num_partitions=1", "--remat=none"),
  ("--num_partitions=2", "--schedule=1f1b"),
  ("--num_partitions=3", "--schedule=zb_h1", "--remat=none"),
  ("--num_partitions=4", "--remat=layer"),
)
# Checkpoints of every second step: there is always another save to be killed in.
OFTEN = ("--set=train.save_interval_steps=2",)
_SAVED = re.compile(r"^saved .*checkpoint-(\d+)\.npz", re.MULTILINE)
_RESTORED = re.compile(r"^restored step (\d+) from", re.MULTILINE)
_MOST_STEPS = 25
"""Most steps between a start and a kill."""


class Kills:
  """Kills runs, and looks at what each leaves and at how the next continues.

  Args:
    folder: for the runs.
    reference: last checkpoint of a run that nobody disturbed.
    seed: of the moments.
  """

  def __init__(
    self, folder: pathlib.Path, reference: Checkpoint | None, seed: int
  ) -> None:
    self._folder = folder
    self._reference = reference
    self._random = random.Random(seed)
    self._num_layouts = 0
    self.num_kills = 0
    self.num_inside = 0
    self.problems: list[str] = []

  def run(self, count: int) -> Outcome:
    """Kills so often, in as many runs of 60 steps as it takes."""
    num_runs = 0
    while self.num_kills < count and not self.problems:
      num_runs += 1
      self._one_run(self._folder / f"killed_{num_runs}", count)
    said = "; ".join(self.problems) or (
      f"{self.num_kills} kills, {self.num_inside} inside a save, in {num_runs} runs of "
      f"{STEPS} steps: each continued from the newest complete checkpoint, and all "
      "ended with the same bits"
    )
    return Outcome("kill -9", not self.problems, said)

  def _one_run(self, folder: pathlib.Path, count: int) -> None:
    """Kills a run again and again until it has ended."""
    while self.num_kills < count:
      expected = newest_step(folder)
      shown = self._killed(folder, expected)
      if shown is None:
        break
      self._check(folder, expected, shown)
      if self.problems:
        return
    expected = newest_step(folder)
    ended = run_to_end(folder, *OFTEN, *self._layout())
    self._check(folder, expected, ended.shown)
    if ended.code != 0 or not equal(final(folder), self._reference):
      self.problems.append(f"{folder}: code {ended.code}, {ended.last}")

  def _killed(self, folder: pathlib.Path, step: int) -> str | None:
    """Starts and kills a run; gives what it showed, None if it has ended before."""
    target = step + 1 + self._random.randrange(_MOST_STEPS)
    inside = 2 * self.num_inside <= self.num_kills
    with started(folder, *OFTEN, *self._layout()) as process:
      assert process.stdout
      shown = []
      for line in process.stdout:
        shown.append(line)
        if line.startswith(f"step={target}/"):
          break
      else:
        process.wait()
      if inside:
        _wait_for_save(folder, process)
      time.sleep(self._random.uniform(0, 0.02))
      ended = process.poll() is not None
      process.kill()
      shown.append(process.stdout.read())
    if ended:
      if process.returncode:
        self.problems.append(f"{folder}: code {process.returncode}, {shown[-2:]}")
      return None
    self.num_kills += 1
    self.num_inside += (folder / "checkpoint.partial").exists()
    return "".join(shown)

  def _layout(self) -> tuple[str, ...]:
    self._num_layouts += 1
    return LAYOUTS[self._num_layouts % len(LAYOUTS)]

  def _check(self, folder: pathlib.Path, expected: int, shown: str) -> None:
    """Checks where a run began, and that all it called saved is there."""
    restored = _RESTORED.search(shown)
    began = int(restored[1]) if restored else 0
    # One that was killed before it got there has restored nothing.
    if began != expected and "building the step" in shown:
      self.problems.append(f"{folder}: began at {began}, not at {expected}")
    saved = max([expected, *map(int, _SAVED.findall(shown))])
    found = newest_step(folder)
    if found < saved:
      self.problems.append(f"{folder}: {saved} was saved, the newest is {found}")


def _wait_for_save(folder: pathlib.Path, process: subprocess.Popen[str]) -> None:
  """Waits until a checkpoint is being written, or the run has ended."""
  partial = folder / "checkpoint.partial"
  begun = time.monotonic()
  while process.poll() is None and time.monotonic() - begun < LIMIT_SECS:
    if partial.exists():
      return
    time.sleep(0.0002)
