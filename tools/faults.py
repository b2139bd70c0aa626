"""The fault suite: whatever happens to a run, nothing finished is lost.

  python -m tools.faults

Kills a run of 60 steps at random moments, damages its checkpoints, fills its disk, and
makes a layer or the input fail, hang or give bad numbers. Each restart must continue
from the newest complete checkpoint and end with the bits of a run that nobody
disturbed; each error must name its place, within a time limit. Prints a line for each
fault, and ends with code 1 if one is not survived. `--kills=N` takes fewer kills,
`--only=` some of the sections.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import app, flags

from tfpipe.program import streams
from tfpipe.program.checkpoint import Checkpoint
from tfpipe.program.restarts import FAILED, HUNG
from tfpipe.spelling import nearest
from tfpipe.units import format_secs
from tools import fault_files
from tools.fault_kills import Kills
from tools.fault_runs import Outcome, equal, final, newest_step, run, started

SECTIONS = ("kills", "files", "disk", "errors", "restarts")

# Layer 'faulty' is in the first of two stages; row 4 begins micro-batch 2 of four.
_PLACE = r"layer 'faulty' \(stage 0 on /device:CPU:0\)"
_ROW = "--set=task.fault_row=4"
_SECS = "--set=train.step_timeout_secs=5"


class Error(NamedTuple):
  """A fault in a step, and what the run must say.

  Attributes:
    name: of the fault.
    arguments: that cause it.
    code: of the program.
    pattern: of its last line.
  """

  name: str
  arguments: Sequence[str]
  code: int
  pattern: str


ERRORS = (
  Error(
    "NaN in one micro-batch",
    ("--set=task.fault=nan", _ROW),
    1,
    rf"stopped: step 5: .* in micro-batch 2 of step 5, the output of {_PLACE} is not f",
  ),
  Error(
    "NaN in a gradient",
    ("--set=task.fault=gradient", _ROW),
    1,
    rf"stopped: step 6: .* in micro-batch 2 of step 5, the gradient of {_PLACE} is not",
  ),
  Error(
    "a layer that raises",
    ("--set=task.fault=raise", _ROW),
    FAILED,
    rf"failed: step 5: {_PLACE}, forward of micro-batch 2: InvalidArgumentError: ",
  ),
  Error(
    "a layer that cannot be built",
    ("--set=task.fault=build",),
    1,
    rf"error: building the step: {_PLACE}, fault_cases\.py:\d+: ZeroDivisionError: a ",
  ),
  Error(
    "a layer that hangs",
    ("--set=task.fault=spin", _ROW, _SECS),
    HUNG,
    r"hung: step 5 .*: device 0 does not end F \(forward of stage 0, micro-batch 2\)",
  ),
  Error(
    "a thread of the input that dies",
    ("--set=input.fault=raise",),
    FAILED,
    r"failed: step 5: the input, FaultyInput, has failed: .*: the disk is gone",
  ),
  Error(
    "an input that blocks",
    ("--set=input.fault=block", _SECS),
    HUNG,
    r"hung: step 5 waits for the input, FaultyInput, for more than train\.step_timeout",
  ),
)


def errors(
  folder: pathlib.Path,
  reference: Checkpoint | None,
  table: Sequence[Error] = ERRORS,
) -> list[Outcome]:
  """Makes steps fail; what was saved before must be there, and lead to the same end."""
  outcomes, own = [], folder
  for number, error in enumerate(table):
    own = folder / f"error_{number}"
    often = "--set=train.save_interval_steps=2"
    ended = run(own, often, *error.arguments)
    saved = 0 if "build" in error.arguments[0] else 4
    passed = (
      ended.code == error.code
      and re.match(error.pattern, ended.last) is not None
      and newest_step(own) == saved
    )
    outcomes.append(Outcome(error.name, passed, ended.last))
  if outcomes:
    passed = run(own).code == 0 and equal(final(own), reference)
    outcomes.append(
      Outcome("without the fault again", passed, "ends with the same bits")
    )
  return outcomes


def restarts(
  folder: pathlib.Path, reference: Checkpoint | None, kills: int = 2
) -> Outcome:
  """Kills the trainer below its supervisor, which starts it again."""
  shown = []
  with started(folder, f"--max_restarts={kills}") as process:
    assert process.stdout
    left = kills
    for line in process.stdout:
      shown.append(line)
      if left and line.startswith(f"step={60 - 20 * left}/"):
        left -= 1
        _kill_child(process.pid)
    code = process.wait()
  count = sum("was ended by SIGKILL" in line for line in shown)
  passed = code == 0 and count == kills and equal(final(folder), reference)
  return Outcome("--max_restarts", passed, f"code {code}, {count} restarts")


def _kill_child(pid: int) -> None:
  children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
  for child in children:
    os.kill(int(child), signal.SIGKILL)


def suite(
  folder: pathlib.Path, kills: int, seed: int = 0, only: Sequence[str] = SECTIONS
) -> Iterator[Outcome]:
  """Runs sections and yields what became of each fault.

  Args:
    folder: for the runs.
    kills: number of kills.
    seed: of the moments and of the damage.
    only: names of the sections.
  """
  undisturbed = folder / "undisturbed"
  ended = run(undisturbed)
  reference = final(undisturbed)
  yield Outcome("undisturbed", reference is not None, f"code {ended.code}")
  if reference is None:
    return
  if "kills" in only:
    yield Kills(folder, reference, seed).run(kills)
  if "files" in only:
    yield from fault_files.damaged(folder, undisturbed, reference, seed)
  if "disk" in only:
    yield fault_files.full_disk(folder, reference)
  if "errors" in only:
    yield from errors(folder, reference)
  if "restarts" in only:
    yield restarts(folder / "supervised", reference)


def define_flags() -> None:
  """Defines the flags: other tools have an `--only` of their own."""
  flags.DEFINE_integer("kills", 100, "Number of kills.", lower_bound=1)
  flags.DEFINE_integer("seed", 0, "Seed of the moments and of the damage.")
  flags.DEFINE_list("only", [], f"Sections: {', '.join(SECTIONS)}.")


def main(argv: Sequence[str]) -> None:
  """Prints what became of each fault."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  for name in flags.FLAGS.only:
    if name not in SECTIONS:
      allowed = f"must be among {', '.join(SECTIONS)}{nearest(name, SECTIONS)}"
      sys.exit(f"error: --only={name}: {allowed}")
  begun, failed = time.monotonic(), 0
  with tempfile.TemporaryDirectory() as folder:
    found = suite(
      pathlib.Path(folder),
      flags.FLAGS.kills,
      flags.FLAGS.seed,
      flags.FLAGS.only or SECTIONS,
    )
    for outcome in found:
      failed += not outcome.passed
      word = "ok    " if outcome.passed else "FAILED"
      print(f"{word} {outcome.name}: {outcome.said}", flush=True)
  print(f"{failed} not survived; {format_secs(time.monotonic() - begun)}")
  sys.exit(1 if failed else 0)


if __name__ == "__main__":
  streams.outlive_readers()
  define_flags()
  app.run(main)
