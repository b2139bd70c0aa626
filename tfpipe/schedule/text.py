"""Schedules as files: CSV for people and spreadsheets, JSON for programs.

Both hold the whole record, so that reading gives back what was written, and both are
checked field by field on reading. Whether the schedule makes sense is for `validate`.

The CSV starts with a line for each fact, then has a line for each action; the lines of
a device are in the order of its list:

  name,gpipe
  num_stages,2
  num_micro_batches,1
  exact,true
  num_versions,1
  placement,0,1
  device,kind,stage,micro_batch,pipe,size,version
  0,F,0,0,0,1,0
  ...

A spreadsheet may have saved it: with semicolons, empty cells at the end of rows, TRUE
for true.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from tfpipe import text_files
from tfpipe.schedule.action import KINDS, Action
from tfpipe.schedule.schedule import Schedule
from tfpipe.spelling import nearest

__all__ = ["from_csv", "from_json", "to_csv", "to_json"]

_NUMBERS = ("num_stages", "num_micro_batches", "num_versions")
_FACTS = ("name", "num_stages", "num_micro_batches", "exact", "num_versions")
_COLUMNS = ("device", *Action._fields)
_MOST_DIGITS = 18


def to_csv(schedule: Schedule) -> str:
  """Returns the schedule as CSV text."""
  file = io.StringIO(newline="")
  writer = csv.writer(file, lineterminator="\n")
  for fact in _FACTS:
    value = getattr(schedule, fact)
    writer.writerow([fact, str(value).lower() if fact == "exact" else value])
  for devices in schedule.placement:
    writer.writerow(["placement", *devices])
  writer.writerow(_COLUMNS)
  for device, actions in enumerate(schedule.actions):
    writer.writerows([device, *action] for action in actions)
  return file.getvalue()


def from_csv(text: str) -> Schedule:
  """Reads what `to_csv` writes; ValueError names the line and the field."""
  text = text.removeprefix("\ufeff")
  delimiter = ";" if ";".join(_COLUMNS[:2]) in text else ","
  reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
  facts: dict[str, Any] = {}
  placement: list[tuple[int, ...]] = []
  actions: list[list[Action]] | None = None
  try:
    for cells in reader:
      where = f"line {reader.line_num}"
      row = _without_empty_end(cells)
      if not row:
        continue
      if actions is not None:
        _add_row(actions, row, where)
      elif tuple(row) == _COLUMNS:
        actions = [[] for _ in range(_num_devices(placement))]
      elif row[0] == "placement":
        placement.append(_devices(row, where))
      else:
        _add_fact(facts, row, where)
  except csv.Error as error:
    raise ValueError(f"line {reader.line_num}: {error}") from error
  if actions is None:
    raise ValueError(f"the line {','.join(_COLUMNS)} is missing")
  facts["placement"] = tuple(placement)
  facts["actions"] = tuple(tuple(of_device) for of_device in actions)
  return _schedule(facts)


def _without_empty_end(cells: Sequence[str]) -> list[str]:
  row = list(cells)
  while row and not row[-1]:
    row.pop()
  return row


def _devices(row: Sequence[str], where: str) -> tuple[int, ...]:
  if len(row) == 1:
    raise ValueError(f"{where}: placement has no values, expected a device a stage")
  return tuple(_number(value, where, row[0]) for value in row[1:])


def _num_devices(placement: Sequence[Sequence[int]]) -> int:
  devices = [device for pipe in placement for device in pipe]
  if not devices:
    return 0
  # Each device has a stage, so a larger number is wrong. It must not make its lists.
  if max(devices) >= len(devices):
    raise ValueError(
      f"placement has device {max(devices)}, but only {len(devices)} stages in all"
    )
  return 1 + max(devices)


def _add_fact(facts: dict[str, Any], row: Sequence[str], where: str) -> None:
  fact, *values = row
  if fact == "name" and not values:
    values = [""]
  if fact not in _FACTS:
    known = (*_FACTS, "placement")
    raise ValueError(
      f"{where}: {fact!r} is not one of {', '.join(known)}{nearest(fact, known)}"
    )
  if fact in facts:
    raise ValueError(f"{where}: {fact} is given twice")
  if len(values) != 1:
    raise ValueError(f"{where}: {fact} has {len(values)} values, expected 1")
  value = values[0]
  if fact in _NUMBERS:
    facts[fact] = _number(value, where, fact)
  elif fact == "exact":
    if value.lower() not in ("true", "false"):
      raise ValueError(f"{where}: exact is {value!r}, expected true or false")
    facts[fact] = value.lower() == "true"
  else:
    facts[fact] = value


def _add_row(actions: list[list[Action]], row: Sequence[str], where: str) -> None:
  if len(row) != len(_COLUMNS):
    raise ValueError(f"{where}: {len(row)} values, expected {', '.join(_COLUMNS)}")
  device = _number(row[0], where, "device")
  if device >= len(actions):
    raise ValueError(
      f"{where}: device is {device}, but placement has {len(actions)} devices"
    )
  numbers = [
    _number(value, where, column)
    for column, value in zip(_COLUMNS[2:], row[2:], strict=True)
  ]
  actions[device].append(_action([row[1], *numbers], where))


def _number(text: str, where: str, field: str) -> int:
  if not (text.isascii() and text.isdigit()):
    raise ValueError(f"{where}: {field} is {text!r}, expected a whole number >= 0")
  if len(text) > _MOST_DIGITS:
    raise ValueError(f"{where}: {field} has {len(text)} digits")
  return int(text)


def to_json(schedule: Schedule) -> str:
  """Returns the schedule as JSON text, one line a device.

  An action is [kind, stage, micro_batch, pipe, size, version].
  """
  facts = {fact: json.dumps(getattr(schedule, fact)) for fact in _FACTS}
  facts["placement"] = json.dumps(schedule.placement)
  lists = ",\n    ".join(json.dumps(actions) for actions in schedule.actions)
  facts["actions"] = f"[\n    {lists}\n  ]"
  lines = ",\n".join(f'  "{fact}": {value}' for fact, value in facts.items())
  return f"{{\n{lines}\n}}\n"


def from_json(text: str) -> Schedule:
  """Reads what `to_json` writes; ValueError names the line or the field."""
  facts = text_files.from_json(text)
  if not isinstance(facts, dict):
    raise ValueError(f"expected a JSON object, not {type(facts).__name__}")
  known = (*_FACTS, "placement", "actions")
  for fact in facts:
    if fact not in known:
      raise ValueError(
        f"field {fact!r} is not one of {', '.join(known)}{nearest(fact, known)}"
      )
  for fact, kind in (
    ("name", str),
    ("exact", bool),
    *((name, int) for name in _NUMBERS),
  ):
    if fact in facts:
      _check_type(facts[fact], kind, fact)
  for fact in ("placement", "actions"):
    if fact in facts:
      facts[fact] = tuple(
        tuple(of_row) for of_row in _rows(facts[fact], fact, fact == "actions")
      )
  return _schedule(facts)


def _rows(rows: Any, field: str, of_actions: bool) -> list[list[Any]]:
  """Reads a list of lists of device numbers or of actions."""
  _check_type(rows, list, field)
  result = []
  for index, row in enumerate(rows):
    _check_type(row, list, f"{field}[{index}]")
    places = [f"{field}[{index}][{column}]" for column in range(len(row))]
    if of_actions:
      result.append([_action(v, where) for v, where in zip(row, places, strict=True)])
    else:
      for value, where in zip(row, places, strict=True):
        _check_type(value, int, where)
      result.append(row)
  return result


def _action(values: Any, where: str) -> Action:
  """Makes an action of its six fields."""
  _check_type(values, list, where)
  if len(values) != len(Action._fields):
    raise ValueError(
      f"{where}: {len(values)} values, expected {', '.join(Action._fields)}"
    )
  kind, *numbers = values
  if kind not in KINDS:
    raise ValueError(
      f"{where}: kind is {kind!r}, not one of {', '.join(KINDS)}"
      f"{nearest(str(kind), KINDS)}"
    )
  for field, value in zip(Action._fields[1:], numbers, strict=True):
    _check_type(value, int, f"{where}: {field}")
  return Action(kind, *numbers)


def _check_type(value: Any, kind: type, where: str) -> None:
  if type(value) is not kind:
    raise ValueError(f"{where} is {value!r}, expected {kind.__name__}")


def _schedule(facts: dict[str, Any]) -> Schedule:
  missing = [fact for fact in (*_FACTS, "placement", "actions") if fact not in facts]
  if missing:
    raise ValueError(f"{', '.join(missing)} missing")
  return Schedule(**facts)
