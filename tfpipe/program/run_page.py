"""The page of a run: what `page` draws, gathered from plan, metrics and measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfpipe import layer_table, simulate, units
from tfpipe import plan as plan_lib
from tfpipe.plan import Plan
from tfpipe.program import page as page_lib
from tfpipe.program.metrics_file import Curves
from tfpipe.program.page import MemoryRow, PageData, Table
from tfpipe.program.run import Run
from tfpipe.simulate import StageTimes
from tfpipe.timeline import Timeline
from tfpipe.timeline_compare import Comparison

_KINDS = (
  "weights",
  "slots",
  "averages",
  "accumulators",
  "new_gradients",
  "batch",
  "stash",
  "recomputed",
  "gradients",
)
_NAMES = {
  "accumulators": "sums of gradients",
  "new_gradients": "new gradients",
  "gradients": "gradients for W",
}


def page(
  run: Run,
  curves: Curves,
  evaluated: Mapping[str, float],
  timelines: Mapping[str, Timeline],
  comparison: Comparison | None,
) -> str:
  """Returns the page as HTML.

  Args:
    run: the run.
    curves: of the loss and of all other quantities.
    evaluated: what the last evaluation found; empty if there was none.
    timelines: of one step, in seconds; none if none was measured.
    comparison: of these.
  """
  plan = run.plan
  notes = {
    "cut": "Of one micro-batch.",
    "layers": "Of one micro-batch; activations are what a backward needs.",
    "schedule": "Drawn as if all cells were equal and a backward took two forwards; "
    "the predicted bubble is that of the cells as they are.",
  }
  if plan.notes and timelines:
    notes["timelines"] = "; ".join(plan.notes)
  if comparison and comparison.num_steps > 1:
    notes["comparison"] = f"Measured: the median of {comparison.num_steps} steps."
  header, *rows = plan_lib.table_rows(plan)
  layer_header, *layer_rows = layer_table.rows(plan)
  metrics = {name: by_kind for name, by_kind in curves.items() if name != "loss"}
  return page_lib.render(
    PageData(
      title=run.params.name,
      facts={**_facts(run), **{f"eval {n}": f"{v:.4g}" for n, v in evaluated.items()}},
      cut=Table(header, rows),
      memory=_memory(plan, run.devices),
      schedule=_in_ticks(plan),
      timelines=timelines,
      comparison=_table(comparison),
      losses=curves.get("loss", {}),
      notes=notes,
      layers=Table(layer_header, layer_rows),
      metrics={
        name: drawn
        for name, by_kind in metrics.items()
        if (drawn := _of_steps(by_kind))
      },
    )
  )


def _of_steps(
  by_kind: Mapping[str, Sequence[tuple[int, float]]],
) -> dict[str, Sequence[tuple[int, float]]]:
  """Leaves out what is no curve: what was predicted or measured once."""
  return {kind: p for kind, p in by_kind.items() if kind in ("train", "eval")}


def _facts(run: Run) -> dict[str, str]:
  plan, pipe = run.plan, run.params.pipeline
  return {
    "schedule": plan.schedule.name,
    "partitions K": str(plan.schedule.num_devices),
    "cells": str(len(plan.cells)),
    "micro-batches M": str(pipe.num_micro_batches),
    "remat": pipe.remat,
    "batch size": str(run.input.params.batch_size),
    "weights": units.format_count(sum(cost.param_count for cost in plan.costs)),
    "predicted bubble": f"{plan.bubble:.1%}",
    "devices": ", ".join(run.devices),
    "steps": str(run.step),
  }


def _memory(plan: Plan, devices: Sequence[str]) -> list[MemoryRow]:
  rows, number = [], plan.schedule.num_devices
  for device, name in enumerate(devices):
    of_device = [row for row in plan.stages if row.device == device % number]
    parts = {
      _NAMES.get(kind, kind): sum(getattr(row, kind) for row in of_device)
      for kind in _KINDS
    }
    rows.append(MemoryRow(name, {kind: size for kind, size in parts.items() if size}))
  return rows


def _in_ticks(plan: Plan) -> Timeline:
  """Runs the schedule as textbooks draw it: all stages equal."""
  times = StageTimes.equal(plan.schedule.num_stages)
  return simulate.simulate(plan.schedule, times)


def _table(comparison: Comparison | None) -> Table | None:
  if comparison is None:
    return None
  return Table(("", "predicted", "measured", "difference"), comparison.rows())
