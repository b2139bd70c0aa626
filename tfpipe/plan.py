"""The plan of a run: the cut, each cell's share, the schedule and its bubble.

Made from Params and costs alone: no device is touched and TensorFlow is not imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfpipe import model, partition, schedule, units
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.nested_map import NestedMap
from tfpipe.params import Params
from tfpipe.schedule.schedule import Schedule
from tfpipe.simulate import StageTimes, simulate
from tfpipe.spelling import nearest
from tfpipe.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class Plan:
  """What will run.

  Attributes:
    costs: of each layer, for one micro-batch.
    cells: half-open layer range of each cell.
    schedule: the actions of every device.
    timeline: the simulated step; its unit is the time of one FLOP.
  """

  costs: tuple[LayerCost, ...]
  cells: partition.Cells
  schedule: Schedule
  timeline: Timeline

  @property
  def imbalance(self) -> float:
    """Load of the slowest cell over the mean."""
    return partition.imbalance([cost.flops for cost in self.costs], self.cells)

  @property
  def bubble(self) -> float:
    """Share of the step in which a device waits; recomputation is not waiting."""
    occupied = self.timeline.num_devices * self.timeline.makespan
    return 1.0 - float(sum(self.timeline.busy) / occupied) if occupied else 0.0


def make(p: Params) -> Plan:
  """Plans a run from its Params.

  Raises:
    ValueError, TypeError, AttributeError: a field is not allowed, or not for this
      network, its inputs and their batches.
  """
  model.check(p)
  p.task.learner.Instantiate()
  for layer in p.task.Instantiate().Layers():
    layer.Instantiate()  # checks its Params, which FPropMeta takes for granted
  pipe = p.pipeline
  costs = _costs(p, "input")
  if p.eval_input is not None:
    # What does not fit must not come to light after the training.
    _costs(p, "eval_input")
  flops = [cost.flops for cost in costs]
  if pipe.num_partitions > len(costs):
    raise ValueError(
      f"pipeline.num_partitions={pipe.num_partitions}: must be at most the number of "
      f"layers, {len(costs)}"
    )
  if pipe.lengths:
    cells = partition.explicit(len(costs), pipe.lengths)
  else:
    cells = partition.balance(flops, pipe.num_partitions)
  actions = schedule.make(
    pipe.schedule, len(cells), pipe.num_micro_batches, pipe.remat == "cell"
  )
  model.check_devices(pipe.devices, actions.num_devices)
  loads = partition.loads(flops, cells)
  # A backward costs a forward for the inputs and one for the weights; computing each
  # layer again costs one more.
  extra = 2 if pipe.remat == "layer" else 1
  times = StageTimes(loads, [extra * load for load in loads], loads)
  return Plan(tuple(costs), cells, actions, simulate(actions, times))


def layer_costs(p: Params, micro_batch: Mapping[str, ArraySpec]) -> list[LayerCost]:
  """Asks every layer of the task for its cost of one micro-batch.

  Raises:
    ValueError: the layers do not fit each other or the input's fields.
  """
  task = p.task.Instantiate()
  layers = task.Layers()
  _check_names(layers)
  _check_fields("the task", task.INPUT_FIELDS, micro_batch)
  inputs: Any = tuple(micro_batch[name] for name in task.INPUT_FIELDS)
  costs = []
  for layer in layers:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    if layer.cls.SIDE_INPUTS:
      _check_fields(f"layer {layer.name!r}", layer.cls.SIDE_INPUTS, micro_batch)
      side = {name: micro_batch[name] for name in layer.cls.SIDE_INPUTS}
      args = (*args, NestedMap(side))
    costs.append(layer.cls.FPropMeta(layer, *args))
    inputs = costs[-1].out_shapes
  if not isinstance(inputs, dict) or "loss" not in inputs:
    raise ValueError(
      f"the last layer, {layers[-1].name!r}, must return metrics with 'loss' among them"
    )
  return costs


def table(plan: Plan) -> str:
  """Draws the cut: a line for each cell."""
  flops = [cost.flops for cost in plan.costs]
  loads = partition.loads(flops, plan.cells)
  total = sum(loads) or 1
  rows = [("cell", "layers", "from", "to", "weights", "FLOPs", "share", "border")]
  for stage, (start, end) in enumerate(plan.cells):
    part = plan.costs[start:end]
    rows.append(
      (
        str(stage),
        str(end - start),
        part[0].name,
        part[-1].name,
        units.format_count(sum(cost.param_count for cost in part)),
        units.format_flops(loads[stage]),
        f"{loads[stage] / total:.1%}",
        units.format_bytes(part[-1].border_bytes),
      )
    )
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  return "\n".join(
    "  ".join(
      text.ljust(width) for text, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  )


def summary(plan: Plan) -> str:
  """Says in a line what is predicted."""
  weights = sum(cost.param_count for cost in plan.costs)
  return (
    f"{len(plan.costs)} layers, {units.format_count(weights)} weights; schedule "
    f"{plan.schedule.name}, {len(plan.cells)} cells x "
    f"{plan.schedule.num_micro_batches} micro-batches; predicted bubble "
    f"{plan.bubble:.1%}, slowest cell {plan.imbalance:.2f} x the mean"
  )


def _costs(p: Params, owner: str) -> list[LayerCost]:
  """Gives the costs of a micro-batch of `p.input` or `p.eval_input`."""
  source, number = p.Get(owner).Instantiate(), p.pipeline.num_micro_batches
  batch = source.specs()
  _check_divides(owner, batch, number)
  micro_batch = {
    name: ArraySpec((spec.shape[0] // number, *spec.shape[1:]), spec.dtype)
    for name, spec in batch.items()
  }
  costs = layer_costs(p, micro_batch)
  _check_fits(p.task, owner, source)
  return costs


def _check_fits(task: Params, owner: str, source: Any) -> None:
  """Refuses sizes that the task and an input both have, and the layers cannot see."""
  for name in ("num_classes", "vocab_size"):
    needed = getattr(source, name, 0)
    if name in task and task.Get(name) < needed:
      raise ValueError(
        f"task.{name}={task.Get(name)}: must be at least the {needed} of {owner}"
      )
  size = source.params.image_size if "image_size" in source.params else None
  if size is not None and "image_size" in task and task.image_size != size:
    raise ValueError(
      f"task.image_size={task.image_size}: must be the {size} of {owner}"
    )


def _check_divides(owner: str, batch: Mapping[str, ArraySpec], number: int) -> None:
  rows = next(iter(batch.values())).shape[0]
  if rows % number:
    near = [m for m in range(1, rows + 1) if rows % m == 0]
    best = min(near, key=lambda m: abs(m - number))
    raise ValueError(
      f"pipeline.num_micro_batches={number} does not divide {owner}.batch_size={rows}; "
      f"the nearest number that does is {best}"
    )


def _check_names(layers: Sequence[Params]) -> None:
  seen: set[str] = set()
  for index, layer in enumerate(layers):
    if not layer.name:
      raise ValueError(f"layer {index} of the task has no name")
    if layer.name in seen:
      raise ValueError(f"two layers of the task are named {layer.name!r}")
    seen.add(layer.name)


def _check_fields(
  owner: str, names: Sequence[str], batch: Mapping[str, ArraySpec]
) -> None:
  for name in names:
    if name not in batch:
      raise ValueError(
        f"{owner} reads {name!r}; the input gives {', '.join(batch)}"
        f"{nearest(name, batch)}"
      )
