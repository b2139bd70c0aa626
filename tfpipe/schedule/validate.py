"""Check a schedule before it runs, and count what it keeps in memory.

All checks are walks over the lists; a schedule that passes cannot deadlock, compute
anything twice, leave a gradient out or use weights that do not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from tfpipe.schedule.action import KINDS, Action
from tfpipe.schedule.schedule import Schedule, check_sizes, dependencies, order
from tfpipe.spelling import nearest

__all__ = ["InFlight", "in_flight", "validate"]


def validate(schedule: Schedule) -> None:
  """Raises ValueError, naming the action, unless the schedule is sound.

  - Each stage and micro-batch has one F, one B and one W (or one BW in place of both)
    and at most one R, all in the same pipe.
  - Each copy of a stage has its updates U once each, in order, and the micro-batches
    divide evenly between updates.
  - Each action stands in the list of the device where its stage is placed, behind what
    it needs, and no devices wait for each other for ever.
  - The weights an action uses exist, and are among the newest num_versions of their
    stage (version modulo num_versions is then a free buffer for a new one). An exact
    schedule uses those that the micro-batch's own update starts from.
  """
  check_sizes(schedule.num_stages, schedule.num_micro_batches)
  _check_placement(schedule)
  for device, action in _walk(schedule):
    _check_action(schedule, device, action)
  _check_updates(schedule)
  _check_complete(schedule)
  _check_order(schedule)
  _check_versions(schedule)
  order(schedule)


class InFlight(NamedTuple):
  """Most activations each device holds, in activations of one device and micro-batch.

  A stage counts devices / stages: with V stages a device, one holds 1/V.

  Attributes:
    without_backward: forwards whose B or BW has not run ("F without B").
    kept: forwards (with recomputation: R) whose W or BW has not run ("kept to W"): the
      activations inside stages, if all are kept until the weight gradient.
  """

  without_backward: tuple[Fraction, ...]
  kept: tuple[Fraction, ...]


def in_flight(schedule: Schedule) -> InFlight:
  """Counts what a valid schedule holds at its peak, on each device."""

  def forwards(action: Action) -> int:
    return action.size if action.kind == "F" else 0

  def internals(action: Action) -> int:
    recomputed = [
      ("R", action.stage, micro_batch) in schedule.producers
      for micro_batch in action.micro_batches
    ]
    return {"F": recomputed.count(False), "R": action.size}.get(action.kind, 0)

  unit = Fraction(schedule.num_devices, schedule.num_stages)
  return InFlight(
    tuple(unit * _peak(actions, forwards, "B") for actions in schedule.actions),
    tuple(unit * _peak(actions, internals, "W") for actions in schedule.actions),
  )


def _peak(
  actions: Sequence[Action], opened: Callable[[Action], int], closing: str
) -> int:
  """Returns the most micro-batches opened and not yet closed."""
  held = peak = 0
  for action in actions:
    held += opened(action)
    peak = max(peak, held)
    held -= action.size if closing in action.kind else 0
  return peak


def _walk(schedule: Schedule) -> Iterator[tuple[int, Action]]:
  for device, actions in enumerate(schedule.actions):
    for action in actions:
      yield device, action


def _check_placement(schedule: Schedule) -> None:
  name, num_devices = schedule.name, schedule.num_devices
  if not schedule.placement:
    raise ValueError(f"{name}: placement has no pipe")
  for pipe, devices in enumerate(schedule.placement):
    if len(devices) != schedule.num_stages:
      raise ValueError(
        f"{name}: placement[{pipe}] has {len(devices)} devices for "
        f"{schedule.num_stages} stages"
      )
    for stage, device in enumerate(devices):
      if device not in range(num_devices):
        raise ValueError(
          f"{name}: placement[{pipe}][{stage}] is {device!r}, but there are lists for "
          f"devices 0 to {num_devices - 1}"
        )
  unused = set(range(num_devices)).difference(*schedule.placement)
  if unused:
    raise ValueError(f"{name}: device {min(unused)} holds no stage")
  if schedule.num_versions < 1:
    raise ValueError(
      f"{name}: num_versions is {schedule.num_versions!r}: expected a number >= 1"
    )


def _check_action(schedule: Schedule, device: int, action: Action) -> None:
  """Checks the fields of one action and its place."""
  if action.kind not in KINDS:
    raise ValueError(
      f"{schedule.name}: device {device}: kind {action.kind!r} is not one of "
      f"{', '.join(KINDS)}{nearest(action.kind, KINDS)}"
    )
  of_update = action.kind == "U"
  last = schedule.num_micro_batches - 1
  limits = (
    ("stage", action.stage, 0, schedule.num_stages - 1),
    ("pipe", action.pipe, 0, len(schedule.placement) - 1),
    ("micro_batch", action.micro_batch, 0, last),
    ("size", action.size, 1, 1 if of_update else last + 1 - action.micro_batch),
    ("version", action.version, 0, 0 if of_update else schedule.num_micro_batches),
  )
  for field, value, low, high in limits:
    if not isinstance(value, int) or not low <= value <= high:
      raise ValueError(
        f"{schedule.name}: device {device}: {tuple(action)}: {field} is {value!r}, "
        f"expected {low} to {high}"
      )
  if schedule.device(action) != device:
    raise ValueError(
      f"{schedule.name}: {action} is in the list of device {device}, but its stage is "
      f"placed on device {schedule.device(action)}"
    )


def _check_updates(schedule: Schedule) -> None:
  """Checks that every copy of a stage has updates 0, 1, .., the same number."""
  found: dict[tuple[int, int], list[int]] = {
    (pipe, stage): []
    for pipe in range(len(schedule.placement))
    for stage in range(schedule.num_stages)
  }
  for _, action in _walk(schedule):
    if action.kind == "U":
      found[action.pipe, action.stage].append(action.micro_batch)
  # The commonest number is meant: the error then points at the odd one out.
  number = Counter(map(len, found.values())).most_common(1)[0][0]
  expected = list(range(max(number, 1)))
  for (pipe, stage), numbers in found.items():
    if numbers != expected:
      raise ValueError(
        f"{schedule.name}: stage {stage}, pipe {pipe} has updates U {numbers}, "
        f"expected {expected}"
      )
  if schedule.num_micro_batches % schedule.num_updates:
    raise ValueError(
      f"{schedule.name}: {schedule.num_micro_batches} micro-batches do not divide "
      f"evenly between {schedule.num_updates} updates"
    )


def _check_complete(schedule: Schedule) -> None:
  counts, pipes = Counter(), {}
  for _, action in _walk(schedule):
    if action.kind == "U":
      continue
    for micro_batch in action.micro_batches:
      counts.update((kind, action.stage, micro_batch) for kind in action.kind)
      if pipes.setdefault(micro_batch, action.pipe) != action.pipe:
        raise ValueError(
          f"{schedule.name}: {action} is in pipe {action.pipe}, but micro-batch "
          f"{micro_batch} has been in pipe {pipes[micro_batch]}"
        )
  for stage in range(schedule.num_stages):
    for micro_batch in range(schedule.num_micro_batches):
      for kind, allowed in (("F", (1,)), ("B", (1,)), ("W", (1,)), ("R", (0, 1))):
        count = counts[kind, stage, micro_batch]
        if count not in allowed:
          kinds = f"{kind} or BW" if kind in "BW" else kind
          raise ValueError(
            f"{schedule.name}: {count} actions {kinds} of stage {stage}, micro-batch "
            f"{micro_batch}, expected {allowed[-1]}"
          )


def _check_order(schedule: Schedule) -> None:
  """Checks that within a list nothing stands before what it needs."""
  position = {
    action: index
    for actions in schedule.actions
    for index, action in enumerate(actions)
  }
  for device, action in _walk(schedule):
    for needed in dependencies(schedule, action):
      here = schedule.device(needed) == device
      if here and position.get(needed, len(position)) > position[action]:
        raise ValueError(
          f"{schedule.name}: device {device}: {action} needs {needed}, which does not "
          "stand before it"
        )


def _check_versions(schedule: Schedule) -> None:
  """Checks that the weights an action uses are still kept, and those of its step."""
  updates = Counter()
  for _, action in _walk(schedule):
    copy = action.pipe, action.stage
    if action.kind == "U":
      updates[copy] += 1
      continue
    oldest = max(0, updates[copy] - schedule.num_versions + 1)
    if action.version < oldest:
      raise ValueError(
        f"{schedule.name}: {action} uses weight version {action.version}, but with "
        f"{schedule.num_versions} kept there are {oldest} to {updates[copy]}"
      )
    for micro_batch in action.micro_batches:
      start = schedule.update_of(micro_batch)
      if schedule.exact and action.version != start:
        raise ValueError(
          f"{schedule.name} is said to be exact, but {action} uses weight version "
          f"{action.version}, not {start}"
        )
