"""The text form of a Params tree: lines of keys and values, help and differences.

A line is `key : value` with a dotted key; `value_text` has the form of the values.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from tfpipe import spelling
from tfpipe.params_tree import (
  MISSING,
  Field,
  Node,
  child_path,
  children,
  holds_params,
  walk,
)
from tfpipe.value_text import format_value

_LINE = re.compile(rf"\s*(?P<key>{spelling.PATH})\s*:(?P<value>.*)")
_OPEN = re.compile(r"""(['"])(?:\\.|(?!\1)[^\\])*\\?""", re.DOTALL)


def _root(params: Node) -> Field:
  return Field("", params, params, "")


def _leaves(params: Node) -> Iterator[tuple[str, Field]]:
  """Yields what has a line of its own, with its path."""
  for path, field in walk("", _root(params)):
    if not holds_params(field.value):
      yield path, field


def _is_changed(field: Field) -> bool:
  return field.value != field.default


def write(params: Node, changed_only: bool) -> str:
  """Writes a Params as sorted `key : value` lines; see `Params.ToText`."""
  lines = (
    f"{path} : {format_value(field.value, path)}\n"
    for path, field in _leaves(params)
    if not changed_only or _is_changed(field)
  )
  return "".join(lines)


def write_types(params: Node) -> str:
  """Writes the name of each value's type as sorted `key : type` lines."""
  return "".join(
    f"{path} : {type(field.value).__name__}\n" for path, field in _leaves(params)
  )


def describe(params: Node) -> str:
  """Writes the help text of a Params; see `Params.Describe`."""
  lines = []
  for path, field in walk("", _root(params)):
    if holds_params(field.value):
      lines.append(path)
    elif field.default is MISSING or not _is_changed(field):
      lines.append(f"{path} : {format_value(field.value, path)}")
    else:
      default = field.default
      shown = "Params" if holds_params(default) else format_value(default, path)
      lines.append(f"{path} : {format_value(field.value, path)} (default {shown})")
    lines.append(textwrap.indent(inspect.cleandoc(field.description), "    "))
  return "".join(f"{line}\n" for line in lines if line)


def read(text: str) -> dict[str, str]:
  """Splits text into keys and the unread text of their values.

  Blank lines and lines that begin with `#` are skipped. A quoted string may go over
  several lines.

  Raises:
    ValueError: a line has another form, a key comes twice, a string has no end.
  """
  entries: dict[str, str] = {}
  lines = enumerate(text.split("\n"), start=1)
  for number, line in lines:
    if not line.strip() or line.lstrip().startswith("#"):
      continue
    match = _LINE.fullmatch(line)
    if not match:
      raise ValueError(f"line {number}: expected 'key : value', got {line!r}")
    key, value = match["key"], match["value"].lstrip()
    while _OPEN.fullmatch(value):
      following = next(lines, None)
      if following is None:
        raise ValueError(f"line {number}: the string of {key} has no closing quote")
      value = f"{value}\n{following[1]}"
    if key in entries:
      raise ValueError(f"line {number}: {key} is given twice")
    entries[key] = value.rstrip()
  return entries


def split_types(text: str) -> tuple[str, dict[str, str]]:
  """Splits what `Params.ToTextWithTypes` writes into values and types by key.

  Raises:
    ValueError: there is no blank line, or a type line has another form.
  """
  # A string may hold blank lines, so what follows the last one are the types.
  values, blank, types = text.rstrip().rpartition("\n\n")
  if text.strip() and not blank:
    raise ValueError("expected lines 'key : value', a blank line, lines 'key : type'")
  try:
    return values, read(types)
  except ValueError as error:
    raise ValueError(f"after the last blank line, among the types: {error}") from None


def diff(mine: Node, theirs: Node) -> list[str]:
  """Lists the lines of `Params.TextDiff`."""
  return _diff_items("", mine, theirs, " ")


def _diff_items(path: str, mine: Any, theirs: Any, indent: str) -> list[str]:
  a, b = children(mine) or {}, children(theirs) or {}
  keys = {**a, **b}
  lines = []
  for key in sorted(keys) if isinstance(mine, Node) else keys:
    at = child_path(path, mine, key)
    lines += _diff(at, a.get(key, MISSING), b.get(key, MISSING), indent)
  return lines


def _diff(path: str, mine: Any, theirs: Any, indent: str) -> list[str]:
  if mine == theirs:
    return []
  if isinstance(mine, Node) and isinstance(theirs, Node):
    return [f"?{indent}{path}:", *_diff_items("", mine, theirs, indent + "  ")]
  if type(mine) is type(theirs) and isinstance(mine, (list, tuple, dict)):
    return _diff_items(path, mine, theirs, indent)
  return _side(">", path, mine, indent) + _side("<", path, theirs, indent)


def _side(mark: str, path: str, value: Any, indent: str) -> list[str]:
  """Lists what one side has at a path that the other lacks or has otherwise."""
  if value is MISSING:
    return []
  leaves = [
    f"{mark}{indent}{at}: {format_value(field.value, at)}"
    for at, field in walk(path, Field("", value, MISSING, ""))
    if not holds_params(field.value)
  ]
  return leaves or [f"{mark}{indent}{path}: {{}}"]
