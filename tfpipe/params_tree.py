"""The tree that Params make with lists, tuples and dicts: how it is walked."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tfpipe import spelling

MISSING = object()


class Field(NamedTuple):
  """One parameter. `default` is what was defined; it is never changed."""

  name: str
  value: Any
  default: Any
  description: str


class Node(abc.ABC):
  """What the walks need of a Params, and by which they know one."""

  @abc.abstractmethod
  def IterFields(self) -> Iterator[Field]:
    """Iterates over the parameters in the order of their definition."""


def children(value: Any) -> dict[Any, Any] | None:
  """Gives what is directly below a value, by name, index or key; None for a leaf."""
  if isinstance(value, Node):
    return {field.name: field.value for field in value.IterFields()}
  if isinstance(value, (list, tuple)):
    return dict(enumerate(value))
  return value if isinstance(value, dict) else None


def child_path(path: str, parent: Any, key: Any) -> str:
  """Gives the path of a child: `a.b`, `a[0]`, `a['k']`."""
  if isinstance(parent, Node):
    return spelling.join_path(path, key)
  return f"{path}[{key!r}]"


def holds_params(value: Any) -> bool:
  """Tells whether a value is a Params, or a list, tuple or dict with one inside."""
  if isinstance(value, Node):
    return True
  return any(holds_params(item) for item in (children(value) or {}).values())


def walk(path: str, field: Field) -> Iterator[tuple[str, Field]]:
  """Yields a field and all below it with their paths, Params sorted by name.

  Items of a list, tuple or dict come one by one if there is a Params among them, else
  the whole is one leaf. A default belongs to the nearest `Define`; an item that the
  default of its list lacks has none. The default class of a Params is the class that is
  in its place in the default of `field`; a root is its own default.

  Raises:
    TypeError: the key of a dict of Params is no str or int, so no part of a path.
  """
  yield path, field
  value, default = field.value, field.default
  if not holds_params(value):
    return
  if isinstance(value, Node):
    for inner in sorted(value.IterFields()):
      if inner.name == "cls" and default is not value:
        inner = inner._replace(default=getattr(default, "cls", MISSING))
      yield from walk(child_path(path, value, inner.name), inner)
    return
  known = (children(default) or {}) if type(default) is type(value) else {}
  for key, item in (children(value) or {}).items():
    if type(key) not in (int, str):
      raise TypeError(f"{path}: the key {key!r} of a dict of Params is no str or int")
    inner = Field("", item, known.get(key, MISSING), "")
    yield from walk(child_path(path, value, key), inner)


def visit(
  path: str,
  value: Any,
  visit_fn: Callable[[str, Any], Any],
  enter_fn: Callable[[str, Any], bool],
  exit_fn: Callable[[str, Any], Any],
) -> None:
  """Visits a value and all below it in their own order; see `Params.Visit`."""
  items = children(value)
  if items is None:
    visit_fn(path, value)
  elif enter_fn(path, value):
    for key, item in items.items():
      visit(child_path(path, value, key), item, visit_fn, enter_fn, exit_fn)
    exit_fn(path, value)


def descend(root: Node, steps: tuple[str | int, ...], path: str) -> tuple[Any, Any]:
  """Follows a path.

  Args:
    root: where the path begins.
    steps: the part of the path to follow.
    path: the whole path, for messages.

  Returns:
    The last Params on the way, and the value at the end (maybe the same).

  Raises:
    AttributeError: a step leads nowhere.
  """
  owner, value, level = root, root, ""
  for step in steps:
    item = _item(value, step)
    if item is MISSING:
      hint = "" if level else _deeper(root, path)
      prefix = f"{path}: " if level else ""
      raise AttributeError(prefix + unknown(value, step, level, hint))
    level = child_path(level, value, step)
    value = item
    owner = value if isinstance(value, Node) else owner
  return owner, value


def _deeper(root: Node, path: str) -> str:
  """Ends a message about a path that lacks its beginning; empty if none ends so."""
  paths = (found for found, _ in walk("", Field("", root, root, "")))
  ends = [found for found in paths if found.endswith(f".{path}")]
  return f"; did you mean {' or '.join(map(repr, ends))}?" if 0 < len(ends) < 4 else ""


def _item(value: Any, step: str | int) -> Any:
  if not isinstance(value, (list, tuple)):
    return (children(value) or {}).get(step, MISSING)
  if isinstance(step, int) and -len(value) <= step < len(value):
    return value[step]
  return MISSING


def unknown(value: Any, step: str | int, level: str, hint: str = "") -> str:
  """Says that a value, found at the path `level`, has no such item, and what it has.

  Params say `hint` instead of what they have, if there is one.
  """
  known = [str(key) for key in children(value) or {}]
  if isinstance(value, Node):
    cls = getattr(value, "cls", None) if "cls" in known else None
    name = f"Params of {cls.__qualname__}" if isinstance(cls, type) else "Params"
    hint = hint or spelling.nearest_or_all(str(step), known)
    return f"{level or name} has no parameter {step!r}{hint}"
  if isinstance(value, (list, tuple)):
    return (
      f"{level} is a {type(value).__name__} of {len(value)} items, without {step!r}"
    )
  if isinstance(value, dict):
    return f"{level} has no key {step!r}{spelling.nearest_or_all(str(step), known)}"
  return f"{level} is {value!r}, no Params, and has no {step!r}"
