"""Measures tfpipe side by side with what it should reach, in one run on one machine.

  python -m tools.benchmark [--only=efficiency,growth] [--quick] [--json=FILE]

Every measurement is a process of its own; those that are compared take turns. Of the
steps of a process the fastest counts, of the processes the median. The machine should
do nothing else. PyTorch and torchgpipe are not among what tfpipe installs: without them
the section `peers` says so.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import app, flags

from tfpipe import schedule, simulate
from tfpipe.plan import align
from tfpipe.units import format_secs

DECODER = "lm.benchmark.Decoder"
AMOEBANET = "image.benchmark.AmoebaNetD18x64"
SHIPPED = (
  "lm.shakespeare.Char",
  "lm.documents.Packed",
  "image.fashion_mnist.AmoebaNetTiny",
)

# Lingvo's GPipe on a Transformer of width 64, K=2, M=8, on another machine, by number
# of layers: seconds from process start to the end of the first step (of 64 layers, only
# those of building the graph), and CPU seconds of a step.
LINGVO = {16: (56.0, 0.92), 64: (173.0, 3.9)}


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
    self._rounds, self._steps = (1, 3) if quick else (3, 9)
    self.raw: dict[str, list[dict[str, Any]]] = {}

  def turns(self, runs: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Runs commands in turn, several times; gives the medians of each.

    Args:
      runs: name → arguments of `python -m`.
    """
    for _ in range(self._rounds):
      for name, command in runs.items():
        self.raw.setdefault(name, []).append(self._run(command))
    return {name: _sum_up(self.raw[name]) for name in runs}

  def _run(self, command: Sequence[str]) -> dict[str, Any]:
    extra = [f"--steps={self._steps}", f"--started={time.time()}"]
    found = subprocess.run(
      [sys.executable, "-m", *command, *extra],
      capture_output=True,
      text=True,
      check=False,
    )
    if found.returncode:
      sys.exit(f"{' '.join(command)} failed: {found.stderr.strip()[-2000:]}")
    return json.loads(found.stdout.splitlines()[-1])


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
  remat: str = "none",
) -> list[str]:
  """Gives the command for a Transformer with so many rows in a micro-batch."""
  return ours(
    DECODER,
    task__num_layers=layers,
    task__model_dim=dim,
    task__ff_dim=4 * dim,
    task__num_heads=max(1, dim // 64),
    input__batch_size=rows * num_micro_batches,
    pipeline__num_partitions=num_partitions,
    pipeline__num_micro_batches=num_micro_batches,
    pipeline__remat=remat,
  )


def amoebanet(num_partitions: int) -> list[str]:
  """Gives the command for an AmoebaNet in eight micro-batches."""
  return ours(
    AMOEBANET,
    pipeline__num_partitions=num_partitions,
    pipeline__num_micro_batches=8,
    pipeline__remat="none",
  )


def efficiency(bench: Bench) -> list[Figure]:
  """Two partitions against one on one thread, and against the schedule's bound."""
  runs = {
    "M=8, K=1": decoder(1, 8),
    "M=8, K=2": decoder(2, 8),
    "M=8, K=2, remat": decoder(2, 8, remat="cell"),
    "M=32, K=1": decoder(1, 32, rows=1),
    "M=32, K=2": decoder(2, 32, rows=1),
    "AmoebaNet, K=1": amoebanet(1),
    "AmoebaNet, K=2": amoebanet(2),
  }
  found = bench.turns(runs)
  figures = []
  for name, number in (("M=8", 8), ("M=32", 32), ("AmoebaNet", 8)):
    one, two = found[f"{name}, K=1"]["secs"], found[f"{name}, K=2"]["secs"]
    ideal = one * (number + 1) / (2 * number)
    figures.append(_least(f"efficiency {name}", ideal / two, 0.95, one, two))
  one, two = found["M=8, K=1"]["secs"], found["M=8, K=2, remat"]["secs"]
  bound = one / (3 * 2 * 8) * _remat_makespan(8)
  figures.append(_least("efficiency M=8, remat", bound / two, 0.95, bound, two))
  return figures


def _remat_makespan(num_micro_batches: int) -> float:
  """Simulates GPipe on two stages in which F and R take 1 each, the gradient 2."""
  ones = [1.0, 1.0]
  times = simulate.StageTimes(ones, ones, ones, ones, [0.0, 0.0])
  made = schedule.make("gpipe", 2, num_micro_batches, True)
  return float(simulate.simulate(made, times).makespan)


def growth(bench: Bench) -> list[Figure]:
  """What a start takes with more micro-batches, and with more layers."""
  runs = {
    "base": decoder(4, 8, dim=64),
    "M=128": decoder(4, 128, dim=64),
    "L=128": decoder(4, 8, layers=128, dim=64),
  }
  found = bench.turns(runs)
  base = found["base"]
  figures = []
  for name, goal in (("M=128", 1.5), ("L=128", 2.0)):
    more = found[name]
    nodes, base_nodes = (run["nodes"] + run["function_nodes"] for run in (more, base))
    figures += [
      Figure(
        f"start {name}",
        more["start"] / base["start"],
        goal,
        True,
        f"{format_secs(base['start'])}, {format_secs(more['start'])}",
      ),
      Figure(
        f"nodes {name}", nodes / base_nodes, goal, True, f"{base_nodes:g}, {nodes:g}"
      ),
    ]
  return figures


def lingvo(bench: Bench) -> list[Figure]:
  """Start and step against Lingvo's GPipe, whose figures are of another machine."""
  found = bench.turns({f"L={n}": decoder(2, 8, layers=n, dim=64) for n in LINGVO})
  figures = []
  for layers, (start, cpu) in LINGVO.items():
    run = found[f"L={layers}"]
    goal = 4 if layers == 16 else 15
    detail = f"{format_secs(start)}, {format_secs(run['start'])}"
    ratio = start / run["start"]
    figures.append(Figure(f"Lingvo start L={layers}", ratio, goal, False, detail))
    figures.append(
      _least(f"Lingvo step L={layers}", cpu / run["cpu_secs"], 4, cpu, run["cpu_secs"])
    )
  return figures


def machine(bench: Bench) -> list[Figure]:
  """The share of one core's rate of matrix products that a whole step reaches."""
  found = bench.turns({"step": decoder(1, 8), "products": ["tools.benchmark_products"]})
  rate = found["step"]["flops"] / found["step"]["secs"]
  peak = 1 / found["products"]["secs_per_flop"]
  detail = f"{peak / 1e9:.1f}, {rate / 1e9:.1f} GFLOP/s"
  return [Figure("share of the core", rate / peak, 0.7, False, detail)]


def data(bench: Bench) -> list[Figure]:
  """The share of a step that waits for data, of the shipped sets."""
  return [
    Figure(
      f"data wait {name}",
      run["data_wait"] / run["secs"],
      0.02,
      True,
      f"{format_secs(run['data_wait'])}, {format_secs(run['secs'])}",
    )
    for name, run in bench.turns({name: ours(name) for name in SHIPPED}).items()
  ]


def peers(bench: Bench) -> list[Figure]:
  """PyTorch: one thread, torchgpipe, and torch.distributed.pipelining."""
  goals = {"single": 1.2, "gpipe": 1.5, "1f1b": 1.5, "torchgpipe": 3.0}
  missing = [n for n in ("torch", "torchgpipe") if not importlib.util.find_spec(n)]
  for name in missing:
    print(f"peers: {name} is not installed; what needs it is left out")
  if "torch" in missing:
    return []
  if "torchgpipe" in missing:
    del goals["torchgpipe"]
  runs = {f"torch {name}": ["tools.benchmark_torch", f"--how={name}"] for name in goals}
  runs["K=1"] = decoder(1, 8)
  for name in ("gpipe", "1f1b"):
    runs[f"K=2 {name}"] = [*decoder(2, 8), f"--change=pipeline.schedule={name}"]
  runs["K=2 remat"] = decoder(2, 8, remat="cell")
  found = bench.turns(runs)
  against = {"single": "K=1", "torchgpipe": "K=2 remat"}
  figures = []
  for name, goal in goals.items():
    own = found[against.get(name, f"K=2 {name}")]["secs"]
    other = found[f"torch {name}"]["secs"]
    figures.append(_least(f"PyTorch {name}", other / own, goal, other, own))
  return figures


def _least(name: str, value: float, goal: float, *secs: float) -> Figure:
  return Figure(name, value, goal, False, ", ".join(map(format_secs, secs)))


SECTIONS = {
  "efficiency": efficiency,
  "peers": peers,
  "lingvo": lingvo,
  "growth": growth,
  "input": data,
  "machine": machine,
}


def table(figures: Sequence[Figure]) -> str:
  """Lays the figures out; what falls short is marked."""
  rows = [["figure", "measured", "", "goal", "", "from"]]
  for f in figures:
    met = f.value <= f.goal if f.at_most else f.value >= f.goal
    mark = "" if met else "short"
    sign = "at most" if f.at_most else "at least"
    rows.append([f.name, f"{f.value:.3f}", sign, f"{f.goal:g}", mark, f.detail])
  return align(rows)


def define_flags() -> None:
  """Defines the flags: other tools have an `--only` of their own."""
  flags.DEFINE_list("only", [], f"Of {', '.join(SECTIONS)}; all without it.")
  flags.DEFINE_bool("quick", False, "One process of few steps each.")
  flags.DEFINE_string("json", "", "File for the figures and all raw numbers.")


def main(argv: Sequence[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  chosen = flags.FLAGS.only or list(SECTIONS)
  for name in chosen:
    if name not in SECTIONS:
      sys.exit(f"error: --only={name}: must be of {', '.join(SECTIONS)}")
  bench = Bench(quick=flags.FLAGS.quick)
  figures: list[Figure] = []
  for name in chosen:
    found = SECTIONS[name](bench)
    print(f"{name}\n{table(found)}\n", flush=True)
    figures += found
  if flags.FLAGS.json:
    values = {figure.name: figure.value for figure in figures}
    efficiency_figures = {"transformer": values.get("efficiency M=8")}
    text = json.dumps(
      {"efficiency": efficiency_figures, "figures": values, "raw": bench.raw}, indent=1
    )
    pathlib.Path(flags.FLAGS.json).write_text(text)


if __name__ == "__main__":
  define_flags()
  app.run(main)
