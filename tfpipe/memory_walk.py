"""A device's list of actions, walked with bytes; the rules are those of `memory`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tfpipe.schedule.action import Action

__all__ = ["Stage", "Walk"]


@dataclasses.dataclass(frozen=True)
class Stage:
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


class Walk:
  """A device's list, walked with bytes.

  Attributes:
    most: what each (pipe, stage) holds when the sum over all is largest; the first such
      moment.
    activations: the most bytes of activations that all hold at once.
    forwards: micro-batches that go through each (pipe, stage).
  """

  def __init__(
    self, stages: Sequence[Stage], actions: Sequence[Action], remat_layers: bool
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

  def _moves(self, stages: Sequence[Stage], keys: Sequence[_Key]) -> list[_Move]:
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

  def _move(self, key: _Key, stages: Sequence[Stage], adds: bool) -> _Move:
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
    self, kind: str, stage: Stage, size: int, num_again: int, adds: bool
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
