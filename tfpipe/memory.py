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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfpipe.cost import LayerCost, total
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


@dataclasses.dataclass(frozen=True)
class _Stage:
  """Bytes of one micro-batch in a stage.

  Attributes:
    input: its border with the stage before; 0 for the first stage.
    inside: all that a forward keeps besides.
    kept: the part of `inside` that stays with remat `layer`; else 0.
    largest: the inside of its largest layer with remat `layer`; else 0.
    gradients: what W reads besides.
    sums: of the gradients of its weights.
  """

  input: int
  inside: int
  gradients: int
  sums: int
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
    walk = _Walk(stages, _with_remat(actions, remat), remat == "layer")
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
) -> _Stage:
  part = costs[cell[0] : cell[1]]
  before = costs[cell[0] - 1].border_bytes if cell[0] else 0
  inside = total(part).activation_bytes
  gradients = sum(cost.border_bytes for cost in part if cost.param_count)
  sums = sum(state.gradients for state in _of(states, cell))
  if not remat_layers:
    return _Stage(before, inside, gradients, sums)
  borders = sum(cost.border_bytes for cost in part[:-1])
  largest = max(cost.activation_bytes for cost in part)
  return _Stage(before, inside, gradients, sums, borders, largest)


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


class _Bytes(NamedTuple):
  """What comes and goes; see `StageMemory`."""

  stash: int = 0
  recomputed: int = 0
  gradients: int = 0
  new_gradients: int = 0


_NOTHING = _Bytes()

_Key = tuple[str, int, int, int, int]
"""Kind, pipe, stage, size and micro-batches recomputed of an action."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Move:
  """What an action does to the memory of its device; two are equal if they are one.

  Attributes:
    place: its (pipe, stage).
    forwards: micro-batches that it takes through the stage first.
    brings: what is there from its start on.
    frees: what of that, and of what was there before, goes when it ends.
    sums: bytes of activations and of new gradients that it brings, and of activations
      that it frees.
  """

  place: tuple[int, int]
  forwards: int
  brings: _Bytes
  frees: _Bytes
  sums: tuple[int, int, int]


class _Walk:
  """A device's list, walked with bytes.

  Attributes:
    most: what each (pipe, stage) holds when the sum over all is largest; the first such
      moment.
    activations: the most bytes of activations that all hold at once.
    forwards: micro-batches that go through each (pipe, stage).
  """

  def __init__(
    self, stages: Sequence[_Stage], actions: Sequence[Action], remat_layers: bool
  ) -> None:
    self._remat_layers = remat_layers
    moves = self._moves(stages, _keys(actions))
    now = largest = behind = self.activations = 0
    for index, move in enumerate(moves):
      more, new, less = move.sums
      now += more
      if now > self.activations:
        self.activations = now
      if now + new > largest:
        largest, behind = now + new, index + 1
      now -= less
    held = {move.place: list(_NOTHING) for move in set(moves)}
    self.forwards = dict.fromkeys(held, 0)
    for move, number in Counter(moves).items():
      self.forwards[move.place] += number * move.forwards
    for move, number in Counter(moves[:behind]).items():
      _add(held[move.place], number, move.brings)
    for move, number in Counter(moves[: max(behind - 1, 0)]).items():
      _add(held[move.place], -number, move.frees)
    self.most = {place: _Bytes(*sizes) for place, sizes in held.items()}

  def _moves(self, stages: Sequence[_Stage], keys: Sequence[_Key]) -> list[_Move]:
    """Gives what each action does; actions that do the same share one record."""
    # The paper's largest network has 200,000 actions, of few kinds that are alike.
    of_key = {key: self._move(key, stages, adds=True) for key in dict.fromkeys(keys)}
    first: dict[tuple[int, int], int] = {}
    for key in of_key:
      if key[0] in ("W", "BW"):
        place = keys.index(key)
        first[key[1:3]] = min(place, first.get(key[1:3], place))
    moves = [of_key[key] for key in keys]
    for place in first.values():
      moves[place] = self._move(keys[place], stages, adds=False)
    return moves

  def _move(self, key: _Key, stages: Sequence[_Stage], adds: bool) -> _Move:
    kind, pipe, number, size, num_again = key
    stage = stages[number]
    brings, frees = self._bytes(kind, stage, size, num_again, adds)
    return _Move(
      place=(pipe, number),
      forwards=size if kind == "F" else 0,
      brings=brings,
      frees=frees,
      sums=(sum(brings[:-1]), brings[-1], sum(frees[:-1])),
    )

  def _bytes(
    self, kind: str, stage: _Stage, size: int, num_again: int, adds: bool
  ) -> tuple[_Bytes, _Bytes]:
    """Returns what an action brings, and what is freed when it ends.

    Args:
      kind: of the action.
      stage: where it is.
      size: its micro-batches.
      num_again: those of them that are recomputed.
      adds: whether there are sums to add gradients of weights to.
    """
    inside = stage.kept if self._remat_layers else stage.inside
    # What the forwards of these micro-batches keep, and what is computed again.
    stash = size * stage.input + (size - num_again) * inside
    recomputed = num_again * stage.inside
    late = size * (stage.inside - stage.kept) if self._remat_layers else 0
    new = stage.sums if adds else 0
    if kind == "F":
      return _Bytes(stash), _NOTHING
    if kind == "R":
      return _Bytes(recomputed=recomputed), _NOTHING
    gradients = size * stage.gradients
    if kind == "B":
      return _Bytes(recomputed=late, gradients=gradients), _NOTHING
    if kind == "W":
      freed = _Bytes(stash, recomputed + late, gradients, new)
      return _Bytes(new_gradients=new), freed
    # A whole backward needs one layer's inside for the time it runs.
    freed = _Bytes(stash, recomputed + stage.largest, new_gradients=new)
    return _Bytes(recomputed=stage.largest, new_gradients=new), freed


def _add(sizes: list[int], number: int, more: _Bytes) -> None:
  for kind, size in enumerate(more):
    sizes[kind] += number * size


def _keys(actions: Sequence[Action]) -> list[_Key]:
  """Gives what tells the memory of all actions but updates."""
  again = {
    (stage, first + i)
    for kind, stage, first, _, size, _ in actions
    if kind == "R"
    for i in range(size)
  }
  if not again:
    return [(a[0], a[3], a[1], a[4], 0) for a in actions if a[0] != "U"]
  if len(again) == sum(a[4] for a in actions if a[0] == "F"):
    return [(a[0], a[3], a[1], a[4], a[4]) for a in actions if a[0] != "U"]
  return [
    (kind, pipe, stage, size, sum((stage, first + i) in again for i in range(size)))
    for kind, stage, first, pipe, size, _ in actions
    if kind != "U"
  ]
