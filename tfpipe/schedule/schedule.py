"""A schedule: for each device an ordered list of actions, and what must precede what.

The lists fix every number a training step computes; times only fix its speed. So one
immutable record is validated, simulated, drawn, saved and built, and a new schedule is
new data. What an action waits for is said here, once, for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tfpipe.schedule.action import Action

__all__ = ["Schedule", "backward", "check_sizes", "dependencies", "order", "straight"]

Key = tuple[str, int, int]
"""(F, R, B or W; stage; micro-batch); a BW is found under B and under W."""


@dataclass(frozen=True)
class Schedule:
  """Which device runs which actions, in which order.

  Attributes:
    name: what reports call it.
    num_stages: stages of the model.
    num_micro_batches: micro-batches from the first action to the last.
    placement: for each pipe, the device of each stage.
    actions: for each device, what it does, in order.
    exact: whether every gradient is taken at the weights its update starts from, so
      that the result is that of one device.
    num_versions: weight versions of a stage that are alive at once, at most.
  """

  name: str
  num_stages: int
  num_micro_batches: int
  placement: tuple[tuple[int, ...], ...]
  actions: tuple[tuple[Action, ...], ...]
  exact: bool = True
  num_versions: int = 1

  @property
  def num_devices(self) -> int:
    """Number of devices, each with a list of actions."""
    return len(self.actions)

  def device(self, action: Action) -> int:
    """Returns the device on which the stage and pipe of an action are placed."""
    return self.placement[action.pipe][action.stage]

  @cached_property
  def num_updates(self) -> int:
    """Updates of each copy of a stage, from the first action to the last."""
    return sum(
      action.kind == "U" and action.stage == 0 and action.pipe == 0
      for actions in self.actions
      for action in actions
    )

  def update_of(self, micro_batch: int) -> int:
    """Returns the number of the update that a micro-batch's gradient goes into."""
    return micro_batch * self.num_updates // self.num_micro_batches

  def micro_batches_of(self, update: int) -> range:
    """Returns the micro-batches whose gradients go into an update."""
    updates = max(self.num_updates, 1)
    first, behind = (
      -(-number * self.num_micro_batches // updates) for number in (update, update + 1)
    )
    return range(first, behind)

  @cached_property
  def producers(self) -> dict[Key, Action]:
    """The action that does each kind of work, for each stage and micro-batch."""
    return {
      (kind, action.stage, micro_batch): action
      for actions in self.actions
      for action in actions
      if action.kind != "U"
      for kind in action.kind
      for micro_batch in action.micro_batches
    }


def dependencies(schedule: Schedule, action: Action) -> list[Action]:
  """Lists the actions whose results an action needs, without repeats.

  - F: the forward of the stage before.
  - R: its own forward; not the gradient, so an idle device recomputes early.
  - B, BW: its own forward, its recomputation if there is one, and the input gradient of
    the stage behind.
  - W: its input gradient.
  - U: the weight gradients of its micro-batches on every copy of the stage.
  - All but U: the update that made the weights it uses.

  Raises ValueError, naming both, if the schedule lacks an action that is needed.
  """
  if action.kind == "U":
    keys = [
      ("W", action.stage, micro_batch)
      for micro_batch in schedule.micro_batches_of(action.micro_batch)
    ]
    return list(dict.fromkeys(_producer(schedule, action, key) for key in keys))
  needed = [
    _producer(schedule, action, key)
    for micro_batch in action.micro_batches
    for key in _keys(schedule, action, micro_batch)
  ]
  if action.version:
    needed.append(Action("U", action.stage, action.version - 1, action.pipe))
  return list(dict.fromkeys(needed))


def _keys(schedule: Schedule, action: Action, micro_batch: int) -> list[Key]:
  """Lists what one micro-batch of an action other than U needs."""
  kind, stage = action.kind, action.stage
  if kind == "F":
    return [("F", stage - 1, micro_batch)] if stage else []
  if kind == "R":
    return [("F", stage, micro_batch)]
  if kind == "W":
    return [("B", stage, micro_batch)]
  keys: list[Key] = [("F", stage, micro_batch)]
  if ("R", stage, micro_batch) in schedule.producers:
    keys.append(("R", stage, micro_batch))
  if stage + 1 < schedule.num_stages:
    keys.append(("B", stage + 1, micro_batch))
  return keys


def _producer(schedule: Schedule, action: Action, key: Key) -> Action:
  if key not in schedule.producers:
    kind, stage, micro_batch = key
    raise ValueError(
      f"{schedule.name}: {action} needs {kind} of stage {stage}, micro-batch "
      f"{micro_batch}, which no device does"
    )
  return schedule.producers[key]


def order(schedule: Schedule) -> list[Action]:
  """Returns all actions in one order that fits every device list and dependency.

  Round after round, each device in turn does its next action if what it needs is done.
  So the order is the same each time, and a device's work is spread evenly in it.

  Raises ValueError, naming the action at which each device is blocked, if devices wait
  for each other for ever.
  """
  ordered: dict[Action, None] = {}
  position = [0] * schedule.num_devices
  waiting: list[list[Action] | None] = [None] * schedule.num_devices
  while True:
    before = len(ordered)
    for device, actions in enumerate(schedule.actions):
      if position[device] == len(actions):
        continue
      action = actions[position[device]]
      needed = waiting[device]
      if needed is None:
        needed = dependencies(schedule, action)
      waiting[device] = needed = [other for other in needed if other not in ordered]
      if not needed:
        ordered[action] = None
        position[device] += 1
        waiting[device] = None
    if len(ordered) == before:
      break
  blocked = [
    f"device {device} does not get past {actions[done]}, which needs {needed[0]}"
    for device, (actions, done, needed) in enumerate(
      zip(schedule.actions, position, waiting, strict=True)
    )
    if needed
  ]
  if blocked:
    raise ValueError(f"{schedule.name}: cyclic wait: {'; '.join(blocked)}")
  return list(ordered)


def check_sizes(num_stages: int, num_micro_batches: int) -> None:
  """Raises ValueError if either is not a whole number >= 1."""
  sizes = {"num_stages": num_stages, "num_micro_batches": num_micro_batches}
  for name, value in sizes.items():
    if not isinstance(value, int) or value < 1:
      raise ValueError(f"{name} is {value!r}: expected a whole number >= 1")


def backward(stage: int, micro_batch: int, remat: bool) -> list[Action]:
  """Returns the backward of a stage, right behind its recomputation if remat."""
  recomputation = [Action("R", stage, micro_batch)] if remat else []
  return [*recomputation, Action("BW", stage, micro_batch)]


def straight(
  name: str, num_micro_batches: int, lists: Sequence[Sequence[Action]]
) -> Schedule:
  """Makes an exact schedule: stage s on device s, one update at the end of each list.

  Args:
    name: the schedule's name.
    num_micro_batches: micro-batches of the step.
    lists: for each stage, its actions but the update, in order.
  """
  return Schedule(
    name=name,
    num_stages=len(lists),
    num_micro_batches=num_micro_batches,
    placement=(tuple(range(len(lists))),),
    actions=tuple(
      (*actions, Action("U", stage, 0)) for stage, actions in enumerate(lists)
    ),
  )
