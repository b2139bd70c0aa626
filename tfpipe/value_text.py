"""The text form of a single value: written so that it is read back equal.

The text of a value says its type without doubt; a value without such a text is refused
when written. Text typed by a user is read by the type of the value it replaces.
"""

from __future__ import annotations

import ast
import enum
import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from tfpipe import spelling

_MISSING = object()
_BOOLS = {"true": True, "yes": True, "on": True, "1": True}
_BOOLS |= {"false": False, "no": False, "off": False, "0": False}
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_QUOTED = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\])*)\1""", re.DOTALL)


def format_value(value: Any, path: str) -> str:
  """Writes one value so that `parse` reads it back equal.

  Raises:
    TypeError: values of this type have no text form.
  """
  kind = type(value)
  if value is None or kind in (bool, int, float, str):
    return repr(value)
  if kind in (list, tuple):
    items = [format_value(item, f"{path}[{i}]") for i, item in enumerate(value)]
    inside = ", ".join(items)
    if kind is list:
      return f"[{inside}]"
    return f"({inside},)" if len(items) == 1 else f"({inside})"
  if kind is dict:
    items = [
      f"{format_value(key, path)}: {format_value(item, f'{path}[{key!r}]')}"
      for key, item in value.items()
    ]
    return "{" + ", ".join(items) + "}"
  return _format_reference(value, path)


def _format_reference(value: Any, path: str) -> str:
  """Writes a class, function or member of an enum by the place where it is found."""
  if isinstance(value, enum.Enum):
    kind = type(value)
    text = f"enum/{kind.__module__}/{kind.__qualname__}.{value.name}"
  else:
    module = getattr(value, "__module__", None)
    text = f"type/{module}/{getattr(value, '__qualname__', None)}"
  try:
    found = _resolve(text)
  except ValueError:
    found = _MISSING
  # Arrays are compared item by item.
  if found is _MISSING or found != value:
    raise TypeError(
      f"{path} holds {value!r}, which has no text form; allowed are None, bool, int, "
      "float, str, list, tuple, dict, Params, enums, and classes and functions that "
      "can be imported by their name"
    )
  return text


def _resolve(text: str) -> Any:
  """Imports what `type/module/Name` or `enum/module/Class.MEMBER` names."""
  kind, module, name = text.split("/")
  try:
    found: Any = importlib.import_module(module)
  except Exception as error:  # whatever the module's code raises
    raise ValueError(f"{text!r} cannot be imported: {error}") from error
  for part in name.split("."):
    if not hasattr(found, part):
      hint = spelling.nearest(part, dir(found))
      raise ValueError(f"{text!r}: {module} has no {name!r}{hint}")
    found = getattr(found, part)
  if isinstance(found, enum.Enum) != (kind == "enum"):
    raise ValueError(f"{text!r} is a {type(found).__name__}, not of the kind {kind!r}")
  return found


def parse(text: str, current: Any, default: Any, path: str) -> Any:
  """Reads a value for the parameter at `path` from text.

  The type is that of the current value, or of the default if the current value is None;
  a float among them lets an int become a float. `Params.SetFromText` has the rules.

  Raises:
    ValueError: the text is no value of this type.
  """
  like = default if current is None else current
  if type(current) is int and type(default) is float:
    like = default
  word = text.strip()
  if word == "None" and (current is None or default is None):
    return None
  if like is None:
    return _parse_untyped(text, path)
  if type(like) in _SCALARS:
    return _SCALARS[type(like)](text, path)
  if isinstance(like, enum.Enum) and word in type(like).__members__:
    return type(like)[word]
  if isinstance(like, enum.Enum) and not word.startswith("enum/"):
    hint = spelling.nearest_or_all(word, type(like).__members__)
    raise ValueError(f"{path} takes a {type(like).__name__}; got {word!r}{hint}")
  return _coerce(_evaluate(word, path), like, path)


def parse_as(text: str, kind: str, path: str) -> Any:
  """Reads a value of the type named `kind` for the parameter at `path` from text.

  Raises:
    ValueError: the text is no value of this type, or no value has a type so named.
  """
  word = text.strip()
  for scalar, parse_scalar in _SCALARS.items():
    if kind == scalar.__name__:
      return parse_scalar(text, path)
  for empty in ([], (), {}):
    if kind == type(empty).__name__:
      return _coerce(_evaluate(word, path), empty, path)
  if kind != "NoneType" and not word.startswith(("type/", "enum/")):
    known = ("NoneType", "bool", "int", "float", "str", "list", "tuple", "dict")
    hint = spelling.nearest(kind, known)
    raise ValueError(
      f"{path}: the type {kind!r} is none of {', '.join(known)}{hint}; other types "
      f"have values type/module/Name or enum/module/Class.MEMBER; got {text!r}"
    )
  value = _evaluate(word, path)
  if type(value).__name__ != kind:
    raise ValueError(f"{path} takes a value of type {kind}; got {text!r}")
  return value


def _refusal(path: str, like: Any, got: str) -> ValueError:
  """Makes the error for a value of another type than `like`."""
  kind = "class or function" if callable(like) else type(like).__name__
  return ValueError(f"{path} takes a value of type {kind}; got {got}")


def _parse_bool(text: str, path: str) -> bool:
  word = text.strip().lower()
  if word not in _BOOLS:
    allowed = "true/false, yes/no, on/off, 1/0"
    raise ValueError(f"{path} takes a bool ({allowed}); got {text!r}")
  return _BOOLS[word]


def _parse_int(text: str, path: str) -> int:
  try:
    return int(text, base=0)
  except ValueError:
    raise ValueError(f"{path} takes an int; got {text!r}") from None


def _parse_float(text: str, path: str) -> float:
  word = text.strip()
  if word in _NON_FINITE:
    return _NON_FINITE[word]
  try:
    value = float(word)
  except ValueError:
    raise ValueError(f"{path} takes a float; got {text!r}") from None
  if not math.isfinite(value):
    raise ValueError(f"{path} takes a float; got {text!r}; infinity is written inf")
  return value


def _parse_str(text: str, path: str) -> str:
  word = text.strip()
  match = _QUOTED.fullmatch(word)
  if match:
    quote, inside = match.groups()
    return _evaluate(f"{quote * 3}{inside}{quote * 3}", path)
  if word.startswith(("'", '"')):
    raise ValueError(f"{path}: {text!r} begins with a quote but is no quoted string")
  if word == "None":
    raise ValueError(f"{path} takes a str; got None; the word is written 'None'")
  return text


_SCALARS: dict[type, Callable[[str, str], Any]] = {
  bool: _parse_bool,
  int: _parse_int,
  float: _parse_float,
  str: _parse_str,
}


def _parse_untyped(text: str, path: str) -> Any:
  word = text.strip()
  if word.startswith(("'", '"')):
    return _parse_str(text, path)
  if word.startswith(("[", "(", "{", "type/", "enum/")):
    return _evaluate(word, path)
  try:
    return _evaluate(word, path)
  except ValueError:
    return text


def _evaluate(text: str, path: str) -> Any:
  """Reads a literal as `format_value` writes it."""
  try:
    return _literal(ast.parse(text, mode="eval").body)
  except (MemoryError, RecursionError):
    raise ValueError(
      f"{path}: a literal of {len(text)} characters is too deep"
    ) from None
  except SyntaxError:
    hint = "; strings in it have quotes" if text.startswith(("[", "(", "{")) else ""
    raise ValueError(f"{path}: {text!r} is not a literal{hint}") from None
  except (TypeError, ValueError) as error:
    raise ValueError(f"{path}: {error}") from error


def _literal(node: ast.expr) -> Any:
  match node:
    case ast.Constant(value=None | bool() | int() | str()):
      return node.value
    case ast.Constant(value=float() as number) if math.isfinite(number):
      return number
    case ast.Name(id="inf" | "nan"):
      return _NON_FINITE[node.id]
    case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
      return -_literal(node.operand)
    case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
      return -math.inf
    case ast.List():
      return [_literal(item) for item in node.elts]
    case ast.Tuple():
      return tuple(_literal(item) for item in node.elts)
    case ast.Dict(keys=keys) if None not in keys:
      found = [_literal(key) for key in keys if key]
      twice = next((key for key in found if found.count(key) > 1), _MISSING)
      if twice is not _MISSING:
        raise ValueError(f"the key {twice!r} is given twice")
      return dict(zip(found, map(_literal, node.values), strict=True))
  text = ast.unparse(node)
  reference = text.replace(" ", "")
  if re.fullmatch(r"(type|enum)/[\w.]+/[\w.]+", reference):
    return _resolve(reference)
  raise ValueError(f"{text} is not a literal; strings have quotes")


def _coerce(value: Any, like: Any, path: str) -> Any:
  """Checks a literal against the type of `like`; makes an int a float if need be."""
  kind = type(like)
  if like is None or (type(value) is kind and kind not in (list, tuple, dict)):
    return value
  if kind is float and type(value) is int:
    return _parse_float(str(value), path)
  if kind in (list, tuple) and type(value) in (list, tuple):
    sample = _sample(like)
    items = enumerate(value)
    return kind(_coerce(item, sample, f"{path}[{i}]") for i, item in items)
  if kind is dict and type(value) is dict:
    sample = _sample(like.values())
    items = value.items()
    return {k: _coerce(item, sample, f"{path}[{k!r}]") for k, item in items}
  if callable(like) and callable(value):
    return value
  raise _refusal(path, like, repr(value))


def _sample(items: Iterable[Any]) -> Any:
  """Gives a value of the one type that all items have, or None if they differ.

  Of lists, tuples and dicts it is one that holds the items of all of them.
  """
  items = list(items)
  kinds = {type(item) for item in items}
  if len(kinds) != 1:
    return None
  kind = kinds.pop()
  if kind in (list, tuple):
    return kind(itertools.chain.from_iterable(items))
  if kind is dict:
    values = itertools.chain.from_iterable(item.values() for item in items)
    return dict(enumerate(values))
  return items[0]
