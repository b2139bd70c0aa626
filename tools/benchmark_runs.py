"""What the sections of `benchmark` share: runs in turn, and the commands of tfpipe."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tfpipe.units import format_secs
from tools import live_bytes

DECODER = "lm.benchmark.Decoder"
PARTIAL = "lm.benchmark.Partial"
AMOEBANET = "image.benchmark.AmoebaNetD18x64"


class Figure(NamedTuple):
  """A row of the table.

  Attributes:
    name: what it is, by section.
    value: the measured ratio.
    goal: what it should be: at least, or at most if it is a growth or a share of waits.
    at_most: whether less is better.
    detail: the numbers it is made of.
  """

  name: str
  value: float
  goal: float
  at_most: bool
  detail: str


class Bench:
  """Runs measurements and keeps all raw numbers.

  Args:
    quick: whether one process of few steps is enough.
  """

  def __init__(self, *, quick: bool) -> None:
    self._quick = quick
    self._rounds, self._steps = (1, 3) if quick else (3, 9)
    self.raw: dict[str, list[dict[str, Any]]] = {}

  @cached_property
  def amoebanet_times(self) -> str:
    """A file of measured times of the AmoebaNet's layers, which takes minutes.

    Empty, for a cut by operations, if the benchmark is to be quick.
    """
    if self._quick:
      return ""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = f"{folder}/times.json"
    command = ["tools.profile_layers", f"--model={AMOEBANET}", "--device=cpu"]
    command += ["--threads=1", "--num_partitions=2", "--num_micro_batches=8"]
    run_tool([*command, f"--output={path}"])
    return path

  def turns(self, runs: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Runs commands in turn, several times; gives the medians of each.

    Args:
      runs: name → arguments of `python -m`.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(self._rounds):
      for name, command in runs.items():
        found[name].append(self._run([*command, f"--steps={self._steps}"]))
    self.raw.update(found)
    return {name: _sum_up(values) for name, values in found.items()}

  def live_bytes(self, name: str, command: Sequence[str]) -> dict[str, Any]:
    """Runs a command once, of two steps, for the memory that it takes."""
    found = self._run([*command, "--steps=1", "--memory"], live_bytes.ENVIRONMENT)
    self.raw[name] = [found]
    return found

  def _run(
    self, command: Sequence[str], environment: Mapping[str, str] | None = None
  ) -> dict[str, Any]:
    out = run_tool([*command, f"--started={time.time()}"], environment)
    return json.loads(out.splitlines()[-1])


def run_tool(
  command: Sequence[str], environment: Mapping[str, str] | None = None
) -> str:
  """Runs `python -m` with these arguments; gives what it prints."""
  found = subprocess.run(
    [sys.executable, "-m", *command],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, **(environment or {})},
  )
  if found.returncode:
    sys.exit(f"{' '.join(command)} failed: {found.stderr.strip()[-2000:]}")
  return found.stdout


def _sum_up(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Gives the median over processes of each number, of lists of their least."""

  def number(value: Any) -> float:
    return min(value) if isinstance(value, list) else value

  return {
    name: statistics.median(number(run[name]) for run in runs) for name in runs[0]
  }


def ours(experiment: str, **changes: Any) -> list[str]:
  """Gives the command that measures an experiment on CPUs of one thread.

  Args:
    experiment: its name.
    changes: Params by path, `__` for dots.
  """
  changes = {"pipeline__devices": "cpu", "pipeline__intra_op_threads": 1, **changes}
  pairs = [f"--change={k.replace('__', '.')}={v}" for k, v in changes.items()]
  return ["tools.benchmark_step", f"--experiment={experiment}", *pairs]


def decoder(
  num_partitions: int,
  num_micro_batches: int,
  *,
  rows: int = 2,
  layers: int = 8,
  dim: int = 256,
  length: int = 64,
  vocab: int = 128,
  remat: str = "none",
  experiment: str = DECODER,
  **changes: Any,
) -> list[str]:
  """Gives the command for a Transformer with so many rows in a micro-batch."""
  return ours(
    experiment,
    task__num_layers=layers,
    task__model_dim=dim,
    task__ff_dim=4 * dim,
    task__num_heads=max(1, dim // 64),
    task__vocab_size=vocab,
    task__sequence_length=length,
    input__seq_len=length,
    input__batch_size=rows * num_micro_batches,
    pipeline__num_partitions=num_partitions,
    pipeline__num_micro_batches=num_micro_batches,
    pipeline__remat=remat,
    **changes,
  )


def amoebanet(
  num_partitions: int, *, layer_times: str = "", remat: str = "none"
) -> list[str]:
  """Gives the command for an AmoebaNet in eight micro-batches.

  Args:
    num_partitions: K.
    layer_times: a file of measured times to cut it by.
    remat: what is computed again.
  """
  return ours(
    AMOEBANET,
    pipeline__num_partitions=num_partitions,
    pipeline__num_micro_batches=8,
    pipeline__remat=remat,
    pipeline__layer_times=layer_times,
  )


def least(name: str, value: float, goal: float, *secs: float) -> Figure:
  """Gives a figure that should be at least its goal, made of times."""
  return Figure(name, value, goal, False, ", ".join(map(format_secs, secs)))
