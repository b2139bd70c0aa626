"""The commands that the benchmark would run, collected instead of run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfpipe import trainer
from tfpipe.params import Params
from tools.benchmark_runs import Bench

# Numbers of a run; one of each is enough for the arithmetic of all sections.
NUMBERS = dict.fromkeys(
  (
    *("secs", "cpu_secs", "start", "nodes", "function_nodes", "flops", "data_wait"),
    "secs_per_flop",
  ),
  1.0,
)


class Collected(Bench):
  """Gives made up numbers.

  Attributes:
    commands: by name.
  """

  def __init__(self) -> None:
    super().__init__(quick=True)
    self.commands: dict[str, Sequence[str]] = {}

  def turns(self, runs: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    assert not runs.keys() & self.commands.keys()  # raw numbers are kept by name
    self.commands |= runs
    return {name: NUMBERS for name in runs}

  def live_bytes(self, name: str, command: Sequence[str]) -> dict[str, Any]:
    assert name not in self.commands
    self.commands[name] = command
    found = re.search(r"num_layers=(\d+)|sizes=\d+,(\d+)", " ".join(command))
    assert found
    layers = int(found[1] or found[2])
    mark = re.search(r"end_layer=(\d+)", " ".join(command))
    size = layers * 2**23 + (int(mark[1]) if mark else 0)
    return {"live_bytes": size, "planned": size}


def params_of(command: Sequence[str]) -> Params:
  """Gives the Params that a command of `tools.benchmark_step` would run."""
  assert command[0] == "tools.benchmark_step"
  name = command[1].removeprefix("--experiment=")
  changes = [word.removeprefix("--change=") for word in command[2:]]
  # The file is made when the benchmark runs.
  given = [c for c in changes if not c.startswith("pipeline.layer_times=")]
  return trainer.model_params(name, given)
