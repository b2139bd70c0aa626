"""Check a schedule before it runs.

All checks are walks over the lists; a schedule that passes cannot deadlock, compute
anything twice, leave a gradient out or use weights that do not exist.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from tfpipe.schedule.action import KINDS, Action
from tfpipe.schedule.graph import NONE
from tfpipe.schedule.memory import held
from tfpipe.schedule.schedule import Schedule
from tfpipe.spelling import nearest

__all__ = ["validate"]


def validate(schedule: Schedule, max_kept: float | Fraction | None = None) -> None:
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

  Args:
    schedule: what to check.
    max_kept: if given, the most activations that any device may keep, as `in_flight`
      counts those kept.
  """
  for field in ("num_stages", "num_micro_batches", "num_versions"):
    value = getattr(schedule, field)
    if type(value) is not int or value < 1:
      raise ValueError(
        f"{schedule.name}: {field} is {value!r}: expected a whole number >= 1"
      )
  _check_placement(schedule)
  _check_actions(schedule)
  _check_size(schedule)
  _check_updates(schedule)
  _check_complete(schedule)
  _check_pipes(schedule)
  _check_positions(schedule)
  _check_versions(schedule)
  _ = schedule.graph.order
  if max_kept is not None:
    _check_kept(schedule, max_kept)


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
      if type(device) is not int or not 0 <= device < num_devices:
        raise ValueError(
          f"{name}: placement[{pipe}][{stage}] is {device!r}, but there are lists for "
          f"devices 0 to {num_devices - 1}"
        )
  unused = set(range(num_devices)).difference(*schedule.placement)
  if unused:
    raise ValueError(f"{name}: device {min(unused)} holds no stage")


def _check_actions(schedule: Schedule) -> None:
  """Checks the fields of each action and that it is on its stage's device."""
  placement = schedule.placement
  num_pipes, num_stages = len(placement), schedule.num_stages
  for device, actions in enumerate(schedule.actions):
    for action in actions:
      kind, stage, first, pipe, size, version = action
      of_update = kind == "U"
      if (
        kind not in KINDS
        or not type(stage) is type(first) is type(pipe) is type(size) is int
        or type(version) is not int
        or not 0 <= stage < num_stages
        or not 0 <= pipe < num_pipes
        or not 0 <= first < first + size <= schedule.num_micro_batches
        or not 0 <= version <= (0 if of_update else schedule.num_micro_batches)
        or (of_update and size > 1)
      ):
        raise ValueError(_wrong_field(schedule, device, action))
      if placement[pipe][stage] != device:
        raise ValueError(
          f"{schedule.name}: {action} is in the list of device {device}, but its stage "
          f"is placed on device {placement[pipe][stage]}"
        )


def _check_size(schedule: Schedule) -> None:
  """Checks that there may be an action for each micro-batch, before any array is."""
  covered = sum(action.size for actions in schedule.actions for action in actions)
  if covered < schedule.num_micro_batches:
    raise ValueError(
      f"{schedule.name}: num_micro_batches is {schedule.num_micro_batches}, but all "
      f"actions together are for {covered}"
    )


def _wrong_field(schedule: Schedule, device: int, action: Action) -> str:
  """Says which field of an action is wrong."""
  where = f"{schedule.name}: device {device}:"
  if action.kind not in KINDS:
    return (
      f"{where} kind {action.kind!r} is not one of {', '.join(KINDS)}"
      f"{nearest(str(action.kind), KINDS)}"
    )
  of_update = action.kind == "U"
  number = schedule.num_micro_batches
  limits = (
    ("stage", 0, schedule.num_stages - 1),
    ("pipe", 0, len(schedule.placement) - 1),
    ("micro_batch", 0, number - 1),
    ("size", 1, 1 if of_update else number - action.micro_batch),
    ("version", 0, 0 if of_update else number),
  )
  field, low, high = next(
    (field, low, high)
    for field, low, high in limits
    if type(value := getattr(action, field)) is not int or not low <= value <= high
  )
  found = f"{field} is {getattr(action, field)!r}"
  return f"{where} {tuple(action)}: {found}, expected {low} to {high}"


def _check_updates(schedule: Schedule) -> None:
  """Checks that every copy of a stage has updates 0, 1, .., the same number."""
  found: dict[tuple[int, int], list[int]] = {
    (pipe, stage): []
    for pipe in range(len(schedule.placement))
    for stage in range(schedule.num_stages)
  }
  for action in schedule.graph.actions:
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
  graph = schedule.graph
  if graph.repeated is not None:
    first, second = (str(graph.actions[number]) for number in graph.repeated)
    raise ValueError(f"{schedule.name}: {first} and again {second}: expected one")
  for kind in ("F", "B", "W"):
    for stage, row in enumerate(graph.made[kind]):
      if NONE in row:
        kinds = "F" if kind == "F" else f"{kind} or BW"
        raise ValueError(
          f"{schedule.name}: there is no action {kinds} of stage {stage}, micro-batch "
          f"{row.index(NONE)}"
        )


def _check_pipes(schedule: Schedule) -> None:
  if len(schedule.placement) == 1:
    return
  pipes = [NONE] * schedule.num_micro_batches
  for action in schedule.graph.actions:
    for micro_batch in () if action.kind == "U" else action.micro_batches:
      if pipes[micro_batch] not in (NONE, action.pipe):
        raise ValueError(
          f"{schedule.name}: {action} is in pipe {action.pipe}, but micro-batch "
          f"{micro_batch} has been in pipe {pipes[micro_batch]}"
        )
      pipes[micro_batch] = action.pipe


def _check_positions(schedule: Schedule) -> None:
  """Checks that within a list nothing stands before what it needs."""
  graph = schedule.graph
  devices = graph.devices
  for number, waits in enumerate(graph.waits):
    for needed in waits:
      if devices[needed] == devices[number]:
        raise ValueError(
          f"{schedule.name}: device {devices[number]}: {graph.actions[number]} needs "
          f"{graph.actions[needed]}, which does not stand before it"
        )


def _check_versions(schedule: Schedule) -> None:
  """Checks that the weights an action uses are still kept, and those of its step."""
  updates = Counter()
  starts = [schedule.update_of(m) for m in range(schedule.num_micro_batches)]
  for action in schedule.graph.actions:
    kind, stage, first, pipe, size, version = action
    if kind == "U":
      updates[pipe, stage] += 1
      continue
    done = updates[pipe, stage]
    if version <= done - schedule.num_versions:
      raise ValueError(
        f"{schedule.name}: {action} uses weight version {version}, but with "
        f"{schedule.num_versions} kept there are {done - schedule.num_versions + 1} to "
        f"{done}"
      )
    if schedule.exact and not (starts[first] == version == starts[first + size - 1]):
      raise ValueError(
        f"{schedule.name} is said to be exact, but {action} uses weight version "
        f"{version}, not {starts[first]}"
      )


def _check_kept(schedule: Schedule, limit: float | Fraction) -> None:
  unit = Fraction(schedule.num_devices, schedule.num_stages)
  for device in range(schedule.num_devices):
    for action, kept in held(schedule, device, "W"):
      if kept * unit > limit:
        raise ValueError(
          f"{schedule.name}: device {device}: {action} makes it keep {kept * unit} "
          f"activations, expected at most {limit}"
        )
