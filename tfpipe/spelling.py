"""How names are spelled: the nearest known name, and paths such as `a.b[0].c`.

Every refusal of an unknown name ends with the name the user probably meant, so the
rule for nearness is kept in one place.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_INDEX = r"""-?(?:0|[1-9][0-9]*)|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
PATH = rf"{_NAME}(?:\.{_NAME}|\[(?:{_INDEX})\])*"
_PATH = re.compile(PATH)
_STEP = re.compile(rf"(?P<name>{_NAME})|\[(?P<index>{_INDEX})\]")


def close_matches(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
  """Lists the known names most like `name`, best first; letter case is ignored."""
  spelled = {k.lower(): k for k in sorted(known, reverse=True)}
  matches = difflib.get_close_matches(name.lower(), list(spelled), limit)
  return [spelled[match] for match in matches]


def nearest(name: str, known: Iterable[str]) -> str:
  """Gives the end of an error message: `"; did you mean 'x'?"`, or `""`."""
  matches = close_matches(name, known, limit=1)
  return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
  """Like `nearest`, but names all that is known when nothing is near."""
  names = sorted(known)
  return nearest(name, names) or f"; known: {', '.join(names) or 'none'}"


def split_path(path: str) -> tuple[str | int, ...]:
  """Splits a path into names, indices of lists and keys of dicts.

  Args:
    path: names joined by dots, each with any number of indices behind it:
      `task.layers[1].dim`, `sizes[-1]`, `rates['encoder']`.

  Returns:
    One str or int for each step: `('task', 'layers', 1, 'dim')`.

  Raises:
    ValueError: `path` has another form.
  """
  if not _PATH.fullmatch(path):
    raise ValueError(f"{path!r} is not a path of the form a.b[0].c or a['key'].b")
  steps = _STEP.finditer(path)
  return tuple(step["name"] or ast.literal_eval(step["index"]) for step in steps)


def join_path(parent: str, name: str) -> str:
  """Appends a name to a path; the path of the root is empty."""
  return f"{parent}.{name}" if parent else name
