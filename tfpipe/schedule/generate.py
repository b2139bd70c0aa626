"""What generators share: sizes they check, orders they have in common, the record.

A generator says which forwards and backwards a device does in which order, as lists of
actions. Recomputations and updates are added to all of them here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule

__all__ = [
  "SizeError",
  "Work",
  "alternate",
  "check_even",
  "check_number",
  "check_sizes",
  "cut",
  "finish",
  "looped",
  "straight",
  "v_shaped",
  "without_needless_recomputation",
]

Work = tuple[int, int]
"""A stage and a micro-batch."""


class SizeError(ValueError):
  """A size or option that a schedule does not allow.

  Attributes:
    field: its name, as `schedule.make` calls it.
    value: what was given.
    allowed: what it must be, as text.
  """

  def __init__(self, name: str, field: str, value: object, allowed: str) -> None:
    super().__init__(f"{name}: {field} is {value!r}: expected {allowed}")
    self.field = field
    self.value = value
    self.allowed = allowed


def check_number(name: str, field: str, value: int, low: int = 1) -> None:
  """Raises SizeError unless a value is a whole number and not below `low`."""
  if type(value) is not int or value < low:
    raise SizeError(name, field, value, f"a whole number >= {low}")


def check_sizes(name: str, num_devices: int, num_micro_batches: int) -> None:
  """Raises SizeError, naming the schedule, unless both are whole numbers >= 1."""
  check_number(name, "num_devices", num_devices)
  check_number(name, "num_micro_batches", num_micro_batches)


def check_even(name: str, field: str, value: int) -> None:
  """Raises SizeError unless a value is an even whole number >= 2."""
  if type(value) is not int or value < 2 or value % 2:
    raise SizeError(name, field, value, "an even number >= 2")


def straight(num_devices: int) -> tuple[int, ...]:
  """Places stage s on device s."""
  return tuple(range(num_devices))


def looped(num_devices: int, stages_per_device: int) -> tuple[int, ...]:
  """Places stage v K + d on device d: from the last device on to the first again."""
  return straight(num_devices) * stages_per_device


def v_shaped(num_devices: int) -> tuple[int, ...]:
  """Places stages d and 2K - 1 - d on device d: down the devices and back up."""
  return straight(num_devices) + straight(num_devices)[::-1]


def alternate(
  forwards: Sequence[Work],
  backwards: Sequence[Work],
  warm_up: int,
  weight_delay: int | None = None,
) -> list[Action]:
  """Orders a device's work as 1F1B does: forwards first, then in turn with backwards.

  Args:
    forwards: in order.
    backwards: in order.
    warm_up: forwards before the first pair of a forward and a backward.
    weight_delay: None if a backward is one action BW. Else it is B, with a W behind it
      that is this many backwards late; the Ws that are left come last.
  """
  # As Action(kind, stage, micro_batch), at half the time: long schedules have 100,000s.
  new, rest = tuple.__new__, (0, 1, 0)
  actions = [new(Action, ("F", *work, *rest)) for work in forwards[:warm_up]]
  for index, work in enumerate(backwards):
    if warm_up + index < len(forwards):
      actions.append(new(Action, ("F", *forwards[warm_up + index], *rest)))
    if weight_delay is None:
      actions.append(new(Action, ("BW", *work, *rest)))
      continue
    actions.append(new(Action, ("B", *work, *rest)))
    if index >= weight_delay:
      actions.append(new(Action, ("W", *backwards[index - weight_delay], *rest)))
  if weight_delay is not None:
    left = max(0, len(backwards) - weight_delay)
    actions += [Action("W", *work) for work in backwards[left:]]
  return actions


def cut(actions: Iterable[Action], num_micro_batches: int) -> list[Action]:
  """Leaves out all micro-batches from a number on.

  What is left of a sound schedule is sound: what an action needs is of its own
  micro-batch.
  """
  return [action for action in actions if action.micro_batch < num_micro_batches]


def finish(
  name: str,
  num_micro_batches: int,
  placement: Sequence[Sequence[int]],
  lists: Sequence[Iterable[Action]],
  remat: bool,
) -> Schedule:
  """Makes an exact schedule with one update of each copy of a stage, at the end.

  Args:
    name: the schedule's name; '+R' is added if stages recompute.
    num_micro_batches: micro-batches of the step.
    placement: for each pipe, the device of each stage.
    lists: for each device its forwards and backwards, in order.
    remat: whether to put a recomputation right before each backward.
  """
  updates: list[list[Action]] = [[] for _ in lists]
  for pipe, devices in enumerate(placement):
    for stage, device in enumerate(devices):
      updates[device].append(Action("U", stage, 0, pipe))
  if remat:
    lists = [list(_with_recomputation(actions)) for actions in lists]
  return Schedule(
    name=f"{name}+R" if remat else name,
    num_stages=len(placement[0]),
    num_micro_batches=num_micro_batches,
    placement=tuple(map(tuple, placement)),
    actions=tuple(
      (*actions, *last) for actions, last in zip(lists, updates, strict=True)
    ),
  )


def without_needless_recomputation(schedule: Schedule) -> Schedule:
  """Takes out each recomputation right behind its own forward on a device.

  There, as on the last stage of 1F1B, what it would compute is still held.
  """
  lists = []
  for actions in schedule.actions:
    # Compared as tuples: long schedules have 100,000s of actions.
    pairs = zip(((), *actions), actions, strict=False)
    kept = [a for before, a in pairs if a[0] != "R" or ("F", *a[1:]) != before]
    lists.append(tuple(kept))
  return dataclasses.replace(schedule, actions=tuple(lists))


def _with_recomputation(actions: Iterable[Action]) -> Iterator[Action]:
  for action in actions:
    if action.kind in ("B", "BW"):
      yield tuple.__new__(Action, ("R", *action[1:]))
    yield action
