"""Measures tfpipe side by side with what it should reach, in one run on one machine.

  python -m tools.benchmark [--only=efficiency,growth] [--quick] [--json=FILE]

Every measurement is a process of its own; those that are compared take turns. Of the
steps of a process the fastest counts, of the processes the median. The machine should
do nothing else. PyTorch and torchgpipe are not among what tfpipe installs: without them
the sections `peers` and `memory` say so.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from tfpipe import error_text, schedule, simulate
from tfpipe.plan import align
from tfpipe.program import streams
from tfpipe.units import format_secs
from tools.benchmark_memory import memory
from tools.benchmark_peers import peers
from tools.benchmark_runs import (
  PARTIAL,
  Bench,
  Figure,
  amoebanet,
  decoder,
  least,
  ours,
)

SHIPPED = (
  "lm.shakespeare.Char",
  "lm.documents.Packed",
  "image.fashion_mnist.AmoebaNetTiny",
)

# Lingvo's GPipe on a Transformer of width 64, K=2, M=8, on another machine, by number
# of layers: seconds from process start to the end of the first step (of 64 layers, only
# those of building the graph), and CPU seconds of a step.
LINGVO = {16: (56.0, 0.92), 64: (173.0, 3.9)}


def efficiency(bench: Bench) -> list[Figure]:
  """Two partitions against one on one thread, and against the schedule's bound."""
  runs = {
    "M=8, K=1": decoder(1, 8),
    "M=8, K=2": decoder(2, 8),
    "M=8, K=2, remat": decoder(2, 8, remat="cell"),
    "M=32, K=1": decoder(1, 32, rows=1),
    "M=32, K=2": decoder(2, 32, rows=1),
    "AmoebaNet, K=1": amoebanet(1),
    "AmoebaNet, K=2": amoebanet(2, layer_times=bench.amoebanet_times),
  }
  found = bench.turns(runs)
  figures = []
  for name, number in (("M=8", 8), ("M=32", 32), ("AmoebaNet", 8)):
    one, two = found[f"{name}, K=1"]["secs"], found[f"{name}, K=2"]["secs"]
    ideal = one * (number + 1) / (2 * number)
    figures.append(least(f"efficiency {name}", ideal / two, 0.95, one, two))
  one, two = found["M=8, K=1"]["secs"], found["M=8, K=2, remat"]["secs"]
  bound = one / (3 * 2 * 8) * _remat_makespan(8)
  figures.append(least("efficiency M=8, remat", bound / two, 0.95, bound, two))
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
    "K=2": decoder(2, 8, dim=64),
    "K=2, M=128": decoder(2, 128, dim=64),
    "K=4": decoder(4, 8, dim=64),
    "K=4, M=128": decoder(4, 128, dim=64),
    "K=4, L=128": decoder(4, 8, layers=128, dim=64),
  }
  found = bench.turns(runs)
  figures = []
  for name, base, goal in (
    ("K=2, M=128", "K=2", 1.5),
    ("K=4, M=128", "K=4", 1.5),
    ("K=4, L=128", "K=4", 2.0),
  ):
    less, more = found[base], found[name]
    starts = less["start"], more["start"]
    nodes = [run["nodes"] + run["function_nodes"] for run in (less, more)]
    detail = ", ".join(map(format_secs, starts))
    figures += [
      Figure(f"start {name}", starts[1] / starts[0], goal, True, detail),
      Figure(
        f"nodes {name}", nodes[1] / nodes[0], goal, True, f"{nodes[0]:g}, {nodes[1]:g}"
      ),
    ]
  return figures


def overhead(bench: Bench) -> list[Figure]:
  """What an action takes whose cell hands its input on; its border is sent.

  Two runs differ in the number of such cells alone, on two devices in turn.
  """
  few, many, number = 2, 10, 64
  found = bench.turns({f"V={v}": _handed_on(v, number) for v in (few, many)})
  less, more = found[f"V={few}"]["secs"], found[f"V={many}"]["secs"]
  actions = (many - few) * 2 * number
  secs = (more - less) / actions
  detail = f"{format_secs(more)} less {format_secs(less)}, {actions} actions"
  return [Figure("us of an empty action", 1e6 * secs, 100, True, detail)]


def _handed_on(stages_per_device: int, num_micro_batches: int) -> list[str]:
  """Gives the command for cells of which all but three hand their input on."""
  num_stages = 2 * stages_per_device
  return decoder(
    2,
    num_micro_batches,
    rows=1,
    layers=num_stages - 3,  # the others are embedding, norm and softmax
    dim=64,
    length=16,
    experiment=PARTIAL,
    pipeline__schedule="interleaved",
    pipeline__stages_per_device=stages_per_device,
    pipeline__lengths=(1,) * num_stages,
  )


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
      least(f"Lingvo step L={layers}", cpu / run["cpu_secs"], 4, cpu, run["cpu_secs"])
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


SECTIONS = {
  "efficiency": efficiency,
  "peers": peers,
  "lingvo": lingvo,
  "growth": growth,
  "overhead": overhead,
  "memory": memory,
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
  if flags.FLAGS.json:
    try:
      pathlib.Path(flags.FLAGS.json).open("a").close()
    except OSError as error:
      sys.exit(f"error: --json={error_text.of(error)}")
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
  streams.outlive_readers()
  define_flags()
  app.run(main)
