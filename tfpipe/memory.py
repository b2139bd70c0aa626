"""How many bytes each device needs, from costs and the order of its actions.

Weights, slots, averages and sums of gradients are there all the time. What a forward
keeps for its backward comes and goes: each device's list is walked with bytes.

- F keeps the stage's input, and what is computed inside unless an R follows.
- R brings what is inside.
- BW frees both; of a split backward, W does. What of it B could free already, and the
  gradients inside the stage that W needs besides, nobody can tell from costs: all is
  counted until W.
- Where each layer is computed again (remat `layer`), F keeps the borders between the
  layers, and the backward brings the inside of one layer after the other; a split one
  of all, until W.

A step has the mini-batch on the devices of the stages that read it, so the first
stage's input is counted there. Not counted: temporary values inside an operation, the
gradients on their way, and what the runtime keeps for itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfpipe.cost import LayerCost, total
from tfpipe.partition import Cells
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule

__all__ = ["LayerState", "StageMemory", "most_activations", "of_devices", "predict"]


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

  @property
  def total(self) -> int:
    """Sum of all."""
    return self.state + self.batch + self.activations

  @property
  def state(self) -> int:
    """What is there all the time, whatever the schedule."""
    return self.weights + self.slots + self.averages + self.accumulators

  @property
  def activations(self) -> int:
    """What comes and goes within a step."""
    return self.stash + self.recomputed


@dataclasses.dataclass(frozen=True)
class _Stage:
  """Bytes of one micro-batch in a stage.

  Attributes:
    input: its border with the stage before; 0 for the first stage.
    inside: all that a forward keeps besides.
    kept: the part of `inside` that stays with remat `layer`; else 0.
    largest: the inside of its largest layer with remat `layer`; else 0.
  """

  input: int
  inside: int
  kept: int = 0
  largest: int = 0


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
  stages = [_stage(costs, cell, remat == "layer") for cell in cells]
  owners = {
    cost.name: stage for stage, cell in enumerate(cells) for cost in _of(costs, cell)
  }
  rows = []
  for device, actions in enumerate(schedule.actions):
    walk = _Walk(stages, _with_remat(actions, remat), remat == "layer")
    for (pipe, stage), (stash, recomputed) in sorted(walk.most.items()):
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
          stash=stash,
          recomputed=recomputed,
        )
      )
  return tuple(rows)


def of_devices(rows: Sequence[StageMemory]) -> list[int]:
  """Returns the sum of all stages on each device."""
  totals = [0] * (1 + max(row.device for row in rows))
  for row in rows:
    totals[row.device] += row.total
  return totals


def most_activations(rows: Sequence[StageMemory]) -> int:
  """Returns the most bytes of activations on one device."""
  totals: dict[int, int] = {}
  for row in rows:
    totals[row.device] = totals.get(row.device, 0) + row.activations
  return max(totals.values())


def _of(values: Sequence, cell: tuple[int, int]) -> Sequence:
  return values[cell[0] : cell[1]]


def _stage(
  costs: Sequence[LayerCost], cell: tuple[int, int], remat_layers: bool
) -> _Stage:
  part = costs[cell[0] : cell[1]]
  before = costs[cell[0] - 1].border_bytes if cell[0] else 0
  inside = total(part).activation_bytes
  if not remat_layers:
    return _Stage(before, inside)
  borders = sum(cost.border_bytes for cost in part[:-1])
  return _Stage(before, inside, borders, max(cost.activation_bytes for cost in part))


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


def _again(actions: Sequence[Action]) -> set[tuple[int, int]]:
  """Lists the (stage, micro-batch) that are recomputed."""
  return {
    (action.stage, micro_batch)
    for action in actions
    if action[0] == "R"
    for micro_batch in action.micro_batches
  }


class _Walk:
  """A device's list, walked with bytes.

  Attributes:
    most: stash and what is recomputed, of each (pipe, stage), when their sum over all
      is largest; the first such moment.
    forwards: micro-batches that go through each (pipe, stage).
  """

  def __init__(
    self, stages: Sequence[_Stage], actions: Sequence[Action], remat_layers: bool
  ) -> None:
    again = _again(actions)
    held = {(action[3], action[1]): (0, 0) for action in actions}
    self.forwards = dict.fromkeys(held, 0)
    self.most = dict(held)
    now = largest = 0
    # The paper's largest network has 200,000 actions: as few calls as can be.
    for kind, number, first, pipe, size, _ in actions:
      if kind == "U":
        continue
      key, stage = (pipe, number), stages[number]
      num_again = int((number, first) in again)
      if size > 1:
        num_again += sum((number, first + i) in again for i in range(1, size))
      inside = stage.kept if remat_layers else stage.inside
      # What the forwards of these micro-batches keep, and what is computed again.
      stash = size * stage.input + (size - num_again) * inside
      recomputed = num_again * stage.inside
      late = size * (stage.inside - stage.kept) if remat_layers else 0
      before = held[key]
      brought = (0, 0)
      if kind == "F":
        self.forwards[key] += size
        brought = (stash, 0)
      elif kind == "R":
        brought = (0, recomputed)
      elif kind == "B":
        brought = (0, late)
      elif kind == "BW":
        brought = (0, stage.largest)  # for the time it runs
      now += brought[0] + brought[1]
      held[key] = before[0] + brought[0], before[1] + brought[1]
      if now > largest:
        largest, self.most = now, dict(held)
      if kind == "BW":
        held[key] = before[0] - stash, before[1] - recomputed
        now -= stash + recomputed + stage.largest
      elif kind == "W":
        held[key] = before[0] - stash, before[1] - recomputed - late
        now -= stash + recomputed + late
