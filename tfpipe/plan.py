"""The plan of a run: the cut, the schedule, and what both are predicted to take.

Made from Params and costs alone: no device is touched and TensorFlow is not imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from tfpipe import backend, memory, model, partition, saving, schedule, units
from tfpipe import draft as draft_lib
from tfpipe.cost import LayerCost
from tfpipe.draft import Draft
from tfpipe.hardware import Hardware
from tfpipe.memory import StageMemory
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.schedule.schedule import Schedule
from tfpipe.simulate import StageTimes
from tfpipe.timeline import Timeline

__all__ = ["Plan", "align", "make", "summary", "table", "table_rows"]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What will run.

  Attributes:
    costs: of each layer, for one micro-batch.
    cells: half-open layer range of each stage.
    schedule: the actions of every device.
    times: of each stage, for one micro-batch.
    timeline: the simulated step, in the unit of `times`.
    in_seconds: whether that unit is a second; else it is the time of one FLOP.
    stages: bytes of each copy of each stage, when its device holds most.
    activations: the most bytes of activations that a device holds, by kind of remat: as
      planned, and as it would be with none (or, if it is none, with `cell`).
    hardware: what was planned for, None if nothing is known of it.
    same_devices: for each device of the schedule the first that has the same name.
    num_replicas: of the pipeline, each on devices of its own; all else is of one.
    notes: what a reader should know of the prediction.
  """

  costs: tuple[LayerCost, ...]
  cells: partition.Cells
  schedule: Schedule
  times: StageTimes
  timeline: Timeline
  in_seconds: bool
  stages: tuple[StageMemory, ...]
  activations: dict[str, int]
  hardware: Hardware | None = None
  same_devices: tuple[int, ...] = ()
  num_replicas: int = 1
  notes: tuple[str, ...] = ()

  @property
  def imbalance(self) -> float:
    """Work of the busiest device over the mean."""
    busy = [float(secs) for secs in self.timeline.busy]
    return max(busy) * len(busy) / sum(busy) if any(busy) else 1.0

  @property
  def bubble(self) -> float:
    """Share of devices x step in which a device waits; recomputation is work."""
    return self.timeline.bubble

  @property
  def step_secs(self) -> float | None:
    """Seconds of a step; None if nothing is known of times."""
    return float(self.timeline.makespan) if self.in_seconds else None

  @cached_property
  def device_bytes(self) -> tuple[int, ...]:
    """Bytes of each device at its peak, with those of devices that are the same."""
    return tuple(memory.of_devices(self.stages, self.same_devices))

  @property
  def too_small(self) -> tuple[int, ...]:
    """Devices that do not hold what they need; none if their memory is unknown."""
    if self.hardware is None:
      return ()
    limit = self.hardware.memory_bytes
    return tuple(d for d, need in enumerate(self.device_bytes) if need > limit)


def make(
  p: Params, hardware: Hardware | None = None, network: Network | None = None
) -> Plan:
  """Plans a run from its Params.

  Times are those of the file `pipeline.layer_times`, else operations: with hardware, at
  the speed that it reaches. Without hardware a transfer takes no time.

  Args:
    p: of the run.
    hardware: devices and links to plan for.
    network: that of `p`, if it has been asked before; only `p.pipeline` may have
      changed since.

  Raises:
    ValueError, TypeError, AttributeError, LookupError, OSError: a field is not allowed,
      or not for this network, its inputs and their batches; a file is missing.
  """
  model.check(p)
  network = network or Network(p)
  if p.eval_input is not None:
    # What does not fit must not come to light after the training.
    costs = network.costs(p.pipeline.num_micro_batches, "eval_input")
    saving.check_metric(p.train, costs[-1].out_shapes)
  draft = draft_lib.make(p.pipeline, network)
  meeting = backend.check_plan(p, draft.schedule, draft.cells, draft.costs)
  rows, remat, same = draft.memory(), p.pipeline.remat, draft.same_devices
  other = "cell" if remat == "none" else "none"
  activations = {
    remat: memory.most_activations(rows, same),
    other: memory.most_activations(_memory_with(other, draft), same),
  }
  return Plan(
    costs=draft.costs,
    cells=draft.cells,
    schedule=draft.schedule,
    times=draft.times(hardware),
    timeline=draft.timeline(hardware),
    in_seconds=bool(draft.measured or hardware),
    stages=rows,
    activations=activations,
    hardware=hardware,
    same_devices=same,
    num_replicas=p.pipeline.num_replicas,
    notes=(*_notes(draft, hardware, activations), *meeting),
  )


def _memory_with(remat: str, draft: Draft) -> tuple[StageMemory, ...]:
  """Predicts the memory with another kind of remat, cut and put in order for that."""
  if schedule.is_file(draft.pipe.schedule):
    return draft.memory(remat)  # in the order that its author chose
  pipe = draft.pipe.Copy().Set(remat=remat)
  return draft_lib.make(pipe, draft.network).memory()


def _notes(
  draft: Draft, hardware: Hardware | None, activations: dict[str, int]
) -> list[str]:
  """Says what a reader should know of the prediction."""
  notes = _sharing(draft)
  unsplit = draft.network.unsplit
  lists = draft.schedule.actions
  kinds = {action.kind for actions in lists for action in actions}
  splits = "W" in kinds
  if splits and unsplit:
    names = ", ".join(unsplit[:3]) + (", ..." if unsplit[3:] else "")
    notes.append(
      f"{len(unsplit)} layers ({names}) hold operations that give both gradients at "
      "once, as batch norm's: these run in B, only the rest in W"
    )
  if splits:
    notes.append(
      "activations are counted until W, though B could free a part of them, with the "
      "gradients that W reads, taken to be as large as the outputs of layers with "
      "weights"
    )
  notes += _needless_remat(draft.pipe.remat, kinds, activations)
  if draft.measured:
    notes.append(f"times were measured on {draft.measured.device}")
    rows = draft.network.batch_size() // draft.pipe.num_micro_batches
    if rows != draft.measured.batch:
      notes[-1] += f" with {draft.measured.batch} rows, and scaled to {rows}"
    if draft.crowded != 1.0:
      notes[-1] += (
        f"; actions take {draft.crowded:.4g} times as long, for the micro-batches in "
        "flight"
      )
  elif hardware:
    notes.append(
      f"times are FLOPs at {hardware.efficiency:.0%} of the peak of {hardware.name}, "
      f"{units.format_flops(hardware.flops_per_sec)}/s in {hardware.number_format}"
    )
    if draft.pipe.compute_dtype != "float32":
      notes[-1] += f"; products in {draft.pipe.compute_dtype} may take less"
  return notes


def _needless_remat(
  remat: str, kinds: set[str], activations: dict[str, int]
) -> list[str]:
  """Says if the device that keeps most keeps no less than without recomputation."""
  if remat == "none" or activations[remat] < activations["none"]:
    return []
  if remat == "cell" and "R" not in kinds:
    return [
      "remat=cell computes nothing again with this schedule: every backward comes "
      "right behind its own forward"
    ]
  reason = ""
  if "W" in kinds and "BW" not in kinds:
    reason = ": what a cell has computed, again or not, stays until its W"
  return [
    f"remat={remat} does not lower the most that a device keeps{reason}; remat=none "
    "computes nothing again"
  ]


def _sharing(draft: Draft) -> list[str]:
  """Says which devices of the schedule are one."""
  same = draft.same_devices
  groups = [
    [device for device, other in enumerate(same) if other == first]
    for first in dict.fromkeys(same)
  ]
  names = draft.pipe.devices.split(",")
  return [
    f"devices {', '.join(map(str, group))} are all {names[group[0]].strip()}: their "
    "memory is added up, but times are as if each were a device of its own"
    for group in groups
    if len(group) > 1
  ]


def table(plan: Plan) -> str:
  """Draws the cut: a line for each cell, with its device if cells share devices."""
  return align(table_rows(plan))


def table_rows(plan: Plan) -> list[list[str]]:
  """Returns the rows of `table`, the names of the columns first."""
  flops = [cost.flops for cost in plan.costs]
  loads = partition.loads(flops, plan.cells)
  total = sum(loads) or 1
  shared = plan.schedule.placement != (tuple(range(len(plan.cells))),)
  rows = [["cell", "layers", "from", "to", "weights", "FLOPs", "share", "border"]]
  for stage, (start, end) in enumerate(plan.cells):
    part = plan.costs[start:end]
    rows.append(
      [
        str(stage),
        str(end - start),
        part[0].name,
        part[-1].name,
        units.format_count(sum(cost.param_count for cost in part)),
        units.format_flops(loads[stage]),
        f"{loads[stage] / total:.1%}",
        units.format_bytes(part[-1].border_bytes),
      ]
    )
  if shared:
    rows[0].insert(1, "device")
    for stage, row in enumerate(rows[1:]):
      devices = (str(pipe[stage]) for pipe in plan.schedule.placement)
      row.insert(1, ",".join(dict.fromkeys(devices)))
  return rows


def summary(plan: Plan) -> str:
  """Says in a line what is predicted."""
  weights = sum(cost.param_count for cost in plan.costs)
  num_devices = plan.schedule.num_devices
  cells = "1 cell" if len(plan.cells) == 1 else f"{len(plan.cells)} cells"
  if len(plan.cells) != num_devices:
    cells += f" on {num_devices} devices"
  if plan.num_replicas > 1:
    cells = f"{plan.num_replicas} pipelines of {cells}"
  secs = plan.step_secs
  step = f"step {units.format_secs(secs)}, " if secs is not None else ""
  return (
    f"{len(plan.costs)} layers, {units.format_count(weights)} weights; schedule "
    f"{plan.schedule.name}, {cells} x {plan.schedule.num_micro_batches} "
    f"micro-batches; predicted {step}bubble {plan.bubble:.1%}, busiest device "
    f"{plan.imbalance:.2f} x the mean"
  )


def align(rows: Sequence[Sequence[str]]) -> str:
  """Draws rows of texts as columns."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
    "  ".join(
      text.ljust(width) for text, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  )
