"""Measures how far predictions of the step and its bubble are off.

  python -m tools.check_prediction --model=lm.shakespeare.Char

Each run times the layers (`tools.profile_layers`), then trains a few steps with every
schedule and measures them (`--profile`), all in processes of their own, one thread for
each logical CPU. Printed are the medians over the runs: step time and bubble as
predicted and as measured, and the differences of each run's two. The machine should do
nothing else, and have a core for each partition.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from tfpipe.plan import align
from tfpipe.program import streams
from tfpipe.trainer import FLAGS
from tfpipe.units import format_secs

# Flags of the trainer that are handed on, and what they are if not given.
SHARED = {"model": "lm.shakespeare.Char", "num_partitions": 2, "num_micro_batches": 8}
SHARED |= {"remat": "none"}
for _name in SHARED:
  flags.declare_key_flag(_name)
_SCHEDULES = flags.DEFINE_list("schedules", "gpipe,1f1b,zb_h1", "Schedules to try.")
_RUNS = flags.DEFINE_integer("runs", 5, "Runs of each schedule.", lower_bound=1)

# The first steps are slower; the median of those measured counts.
_WINDOW, _STEPS = "15:11", 25


def _value(name: str) -> Any:
  given = FLAGS[name].value
  return SHARED[name] if given is None else given


def _run(*arguments: str) -> None:
  """Runs a module of this project; ends with its last words if it fails."""
  found = subprocess.run(
    [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False
  )
  if found.returncode:
    sys.exit(f"{arguments[0]} failed: {found.stderr.strip().splitlines()[-1]}")


def compare(schedule: str, times: pathlib.Path, logdir: pathlib.Path) -> dict[str, Any]:
  """Trains a few steps; gives the prediction and what was measured."""
  _run(
    "tfpipe.trainer",
    *(f"--{name}={_value(name)}" for name in SHARED),
    "--mode=train",
    f"--logdir={logdir}",
    f"--max_steps={_STEPS}",
    f"--schedule={schedule}",
    f"--layer_times={times}",
    "--devices=cpu",
    "--set=pipeline.intra_op_threads=1",
    f"--profile={_WINDOW}",
  )
  return json.loads((logdir / "comparison.json").read_text())


def row(schedule: str, runs: Sequence[dict[str, Any]]) -> list[str]:
  """Sums up the runs of a schedule."""

  def median(name: str, side: str) -> float:
    return statistics.median(run[side][name] for run in runs)

  steps = [run["measured"]["step"] / run["predicted"]["step"] - 1 for run in runs]
  bubbles = [run["measured"]["bubble"] - run["predicted"]["bubble"] for run in runs]
  return [
    schedule,
    format_secs(median("step", "predicted")),
    format_secs(median("step", "measured")),
    f"{statistics.median(steps):+.1%}",
    f"{median('bubble', 'predicted'):.1%}",
    f"{median('bubble', 'measured'):.1%}",
    f"{100 * statistics.median(bubbles):+.1f} points",
  ]


def main(argv: Sequence[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  found: dict[str, list[dict[str, Any]]] = {name: [] for name in _SCHEDULES.value}
  with tempfile.TemporaryDirectory() as folder:
    for number in range(_RUNS.value):
      times = pathlib.Path(folder) / "times.json"
      _run(
        "tools.profile_layers",
        f"--model={_value('model')}",
        f"--num_micro_batches={_value('num_micro_batches')}",
        f"--num_partitions={_value('num_partitions')}",
        "--device=cpu",
        "--threads=1",
        f"--output={times}",
      )
      for schedule, runs in found.items():
        logdir = pathlib.Path(folder) / f"{schedule}-{number}"
        runs.append(compare(schedule, times, logdir))
  rows = [["schedule", "step predicted", "measured", "", "bubble", "measured", ""]]
  rows += [row(schedule, runs) for schedule, runs in found.items()]
  settings = ", ".join(f"{name}={_value(name)}" for name in SHARED)
  print(f"{settings}; medians of {_RUNS.value} runs\n{align(rows)}")


if __name__ == "__main__":
  streams.outlive_readers()
  app.run(main)
