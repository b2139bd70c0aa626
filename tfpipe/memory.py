"""How many bytes each device needs, from costs and the order of its actions.

Weights, slots, averages and sums of gradients are there all the time. What a forward
keeps for its backward comes and goes: each device's list is walked with bytes.

- F keeps the stage's input, and what is computed inside unless an R follows.
- R brings what is inside.
- BW frees both; of a split backward, W does. What of it B could free already nobody can
  tell from costs: all is counted until W.
- Between B and W there are also the gradients that W reads: taken to be as large as the
  outputs of the stage's layers with weights. Products inside a layer may have more.
- W and BW have gradients of their own for all trained weights of the stage until they
  are added to the sums, which those of the first micro-batch become.
- Where each layer is computed again (remat `layer`), F keeps the borders between the
  layers, and the backward brings the inside of one layer after the other; a split one
  of all, until W.

A step has the mini-batch on the devices of the stages that read it, so the first
stage's input is counted there. Not counted: temporary values inside an operation, the
gradients on their way, and what the runtime keeps for itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tfpipe.cost import LayerCost, total
from tfpipe.memory_walk import Stage, Walk
from tfpipe.partition import Cells
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule

__all__ = [
  "LayerState",
  "StageMemory",
  "by_device",
  "most_activations",
  "of_devices",
  "predict",
]


@dataclasses.dataclass(frozen=True)
class LayerState:
  """Bytes that a layer has between steps, and what it reads.

  Attributes:
    weights: its own weights, trained or not.
    gradients: one sum for each trained weight that it uses, its own or another's.
    slots: of the optimizer.
    averages: moving averages of the weights.
    sums: gradients gathered over several mini-batches before one update.
    tied: bytes of other layers' weights that it uses, by the name of the layer.
    fields: names of the batch fields that it reads.
  """

  weights: int = 0
  gradients: int = 0
  slots: int = 0
  averages: int = 0
  sums: int = 0
  tied: Mapping[str, int] = dataclasses.field(default_factory=dict)
  fields: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class StageMemory:
  """Bytes of one copy of a stage on its device, when that device holds most.

  Attributes:
    device: number of the device.
    pipe: which copy of the stage.
    stage: number of the stage.
    weights: of the stage; in pipes but the first, and for weights of a stage on another
      device, the copy that a step reads.
    slots: of the optimizer.
    averages: moving averages of the weights.
    accumulators: sums of gradients, within a step and over several.
    batch: micro-batches of the fields that the stage reads.
    stash: what forwards have kept for backwards.
    recomputed: what recomputation has brought.
    gradients: what B has left for W, besides.
    new_gradients: of a W or BW that runs, before they are added to the sums.
    device_activations: the most of activations that its device holds, of all stages;
      that may be at another moment.
  """

  device: int
  pipe: int
  stage: int
  weights: int
  slots: int
  averages: int
  accumulators: int
  batch: int
  stash: int
  recomputed: int
  gradients: int
  new_gradients: int
  device_activations: int

  @property
  def total(self) -> int:
    """Sum of all."""
    return self.state + self.batch + self.activations + self.new_gradients

  @property
  def state(self) -> int:
    """What is there all the time, whatever the schedule."""
    return self.weights + self.slots + self.averages + self.accumulators

  @property
  def activations(self) -> int:
    """What comes and goes within a step."""
    return self.stash + self.recomputed + self.gradients


def predict(
  costs: Sequence[LayerCost],
  states: Sequence[LayerState],
  cells: Cells,
  schedule: Schedule,
  field_bytes: Mapping[str, int],
  remat: str | None = None,
) -> tuple[StageMemory, ...]:
  """Returns what each copy of each stage needs, sorted by device, pipe and stage.

  Args:
    costs: of all layers, for one micro-batch.
    states: of all layers.
    cells: the layers of each stage.
    schedule: a valid schedule of these stages.
    field_bytes: bytes of one micro-batch of each batch field.
    remat: `none`, `cell` or `layer`: what the schedule would need so, whether it has
      recomputations or not. None: as it stands.
  """
  of_devices = by_device(costs, states, cells, schedule, field_bytes, remat)
  return tuple(itertools.chain.from_iterable(of_devices))


def by_device(
  costs: Sequence[LayerCost],
  states: Sequence[LayerState],
  cells: Cells,
  schedule: Schedule,
  field_bytes: Mapping[str, int],
  remat: str | None = None,
) -> Iterator[list[StageMemory]]:
  """Yields the rows of `predict` device by device, each when it is asked for."""
  stages = [_stage(costs, states, cell, remat == "layer") for cell in cells]
  owners = {
    cost.name: stage for stage, cell in enumerate(cells) for cost in _of(costs, cell)
  }
  for device, actions in enumerate(schedule.actions):
    rows = []
    walk = Walk(stages, _with_remat(actions, remat), remat == "layer")
    for (pipe, stage), most in sorted(walk.most.items()):
      part = _of(states, cells[stage])
      fields = set().union(*(state.fields for state in part))
      rows.append(
        StageMemory(
          device=device,
          pipe=pipe,
          stage=stage,
          weights=sum(state.weights for state in part)
          + _copied(part, owners, schedule, device),
          slots=0 if pipe else sum(state.slots for state in part),
          averages=0 if pipe else sum(state.averages for state in part),
          accumulators=sum(s.gradients + (0 if pipe else s.sums) for s in part),
          batch=walk.forwards[pipe, stage] * sum(field_bytes[name] for name in fields),
          **most._asdict(),
          device_activations=walk.activations,
        )
      )
    yield rows


def of_devices(rows: Sequence[StageMemory], same: Sequence[int] = ()) -> list[int]:
  """Returns the sum of all stages on each device.

  Args:
    rows: of all devices of a schedule.
    same: for each of them the first that is the same real device, whose stages then
      count for both; empty if all differ.
  """
  return _sums([(row.device, row.total) for row in rows], same)


def most_activations(rows: Sequence[StageMemory], same: Sequence[int] = ()) -> int:
  """Returns the most bytes of activations on one device; arguments as `of_devices`."""
  of_device = {row.device: row.device_activations for row in rows}
  return max(_sums(list(of_device.items()), same))


def _sums(sizes: Sequence[tuple[int, int]], same: Sequence[int]) -> list[int]:
  same = same or range(1 + max(device for device, _ in sizes))
  totals = [0] * len(same)
  for device, size in sizes:
    totals[same[device]] += size
  return [totals[first] for first in same]


def _of(values: Sequence, cell: tuple[int, int]) -> Sequence:
  return values[cell[0] : cell[1]]


def _stage(
  costs: Sequence[LayerCost],
  states: Sequence[LayerState],
  cell: tuple[int, int],
  remat_layers: bool,
) -> Stage:
  part = costs[cell[0] : cell[1]]
  before = costs[cell[0] - 1].border_bytes if cell[0] else 0
  inside = total(part).activation_bytes
  gradients = sum(cost.border_bytes for cost in part if cost.param_count)
  sums = sum(state.gradients for state in _of(states, cell))
  if not remat_layers:
    return Stage(before, inside, gradients, sums)
  borders = sum(cost.border_bytes for cost in part[:-1])
  largest = max(cost.activation_bytes for cost in part)
  return Stage(before, inside, gradients, sums, borders, largest)


def _copied(
  part: Sequence[LayerState], owners: Mapping[str, int], schedule: Schedule, device: int
) -> int:
  """Returns the bytes of weights that live on other devices and are copied here."""
  return sum(
    num_bytes
    for state in part
    for name, num_bytes in state.tied.items()
    if schedule.placement[0][owners[name]] != device
  )


def _with_remat(actions: Sequence[Action], remat: str | None) -> Sequence[Action]:
  """Takes recomputations out of a list, or puts one before each backward."""
  if remat is None:
    return actions
  others = [action for action in actions if action[0] != "R"]
  if remat != "cell":
    return others
  result = []
  for action in others:
    if action.kind in ("B", "BW"):
      result.append(action._replace(kind="R"))
    result.append(action)
  return result
