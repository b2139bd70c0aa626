"""Runs some steps of one experiment and prints what they took; see `benchmark`.

python -m tools.benchmark_step --experiment=lm.shakespeare.Char --steps=5
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from tfpipe import plan as plan_lib
from tfpipe import trainer
from tfpipe.lazy import tf
from tfpipe.network import Network
from tfpipe.program import quiet
from tools.live_bytes import LiveBytes

_MODEL = flags.DEFINE_string("experiment", "", "Experiment, as --model of the trainer.")
_CHANGES = flags.DEFINE_multi_string("change", [], "Changes, as --set of the trainer.")
STEPS = flags.DEFINE_integer("steps", 5, "Steps that are timed.", lower_bound=1)
MEMORY = flags.DEFINE_bool("memory", False, "Whether to count live bytes as well.")
_STARTED = flags.DEFINE_float("started", 0.0, "When the process was started, seconds.")


def measure(step: Callable[[], Any], count: int) -> dict[str, list[float]]:
  """Gives seconds and CPU seconds of each of some steps."""
  secs, cpu_secs = [], []
  for _ in range(count):
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    secs.append(time.perf_counter() - wall)
    cpu_secs.append(time.process_time() - cpu)
  return {"secs": secs, "cpu_secs": cpu_secs}


def run(
  model: str, changes: Sequence[str], count: int, started: float, memory: bool
) -> dict:
  """Gives times of the start, of steps and of their data, nodes, and operations.

  With `memory` also the most bytes that large blocks had, and the plan's prediction.
  """
  params = trainer.model_params(model, changes)
  num_micro_batches = params.pipeline.num_micro_batches
  costs = Network(params).costs(num_micro_batches)
  plan = plan_lib.make(params)
  with quiet.start_up():
    from tfpipe.program.run import Run

    live = LiveBytes() if memory else None
    made = Run(params, plan)
  function = made.train_function()
  batch = next(iter(made.input.dataset()))
  batch = {name: tf.constant(value.numpy()) for name, value in batch.items()}

  def step() -> None:
    function(batch)
    made.pipeline.step.numpy()  # assigned at the end of the step

  step()
  first = time.time() - started
  rows = iter(made.input.dataset())
  waits = []
  for _ in range(count):
    begun = time.perf_counter()
    fields = next(rows)
    waits.append(time.perf_counter() - begun)
    function(fields)
    made.pipeline.step.numpy()
  counted = (
    {"live_bytes": live.most(), "planned": sum(plan.device_bytes)} if live else {}
  )
  return {
    "start": first,
    **_nodes(function),
    "flops": 3 * num_micro_batches * sum(cost.flops for cost in costs),
    "data_wait": statistics.median(waits[1:] or waits),
    **measure(step, count),
    **counted,
  }


def _nodes(function: Any) -> dict[str, int]:
  """Counts the nodes of a function's graph and of all that it calls."""
  called = function.graph.as_graph_def().library.function
  return {
    "nodes": len(function.function_def.node_def),
    "function_nodes": sum(len(definition.node_def) for definition in called),
  }


def main(argv: Sequence[str]) -> None:
  """Measures and prints one line of JSON."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  started = _STARTED.value or time.time()
  args = (_MODEL.value, _CHANGES.value, STEPS.value, started, MEMORY.value)
  print(json.dumps(run(*args)))


if __name__ == "__main__":
  app.run(main)
