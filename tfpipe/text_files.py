"""Files that people give: found, and read as text or JSON, or refused in one line."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

__all__ = ["MOST", "find", "from_json", "home", "kind", "read"]

MOST = sys.float_info.max
"""No number in a file may be beyond this, so that all can be times."""

_MOST_DIGITS = 300

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def home(path: str | pathlib.Path, owner: str) -> pathlib.Path:
  """Returns a path in which `~` is the home folder, and `~name` that of a user.

  Args:
    path: as it was given.
    owner: what an error says it was given for.

  Raises:
    ValueError: there is no such user.
  """
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    user = str(path).partition("/")[0]
    raise ValueError(
      f"{owner}: {user} must be the home folder of a user of this machine"
    ) from error


def find(path: str | pathlib.Path, owner: str) -> pathlib.Path:
  """Returns where a file is that people name; `~` is the home folder.

  Args:
    path: its name.
    owner: what is named so, for the message.

  Raises LookupError if there is none, ValueError for what is no file, or in the home
  folder of nobody.
  """
  file = home(path, owner)
  if not file.exists():
    raise LookupError(f"{owner}: there is no such file")
  if other := kind(file):
    raise ValueError(f"{owner}: this is {other}, not a file")
  return file


def kind(path: pathlib.Path) -> str:
  """Says what is there in the place of a file; empty if it is one, or nothing."""
  if path.is_file():
    return ""
  if path.exists():
    return "a folder" if path.is_dir() else "a pipe or a device"
  return "a link that leads nowhere" if path.is_symlink() else ""


def read(path: str | pathlib.Path) -> str:
  """Returns the text of a file in UTF-8; `~` is the home folder.

  Raises ValueError for another encoding, OSError if it cannot be read.
  """
  try:
    # Spreadsheets put a mark before the first line that is no part of the text.
    return home(path, str(path)).read_text(encoding="utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError("this is no text in UTF-8") from error


def from_json(text: str) -> Any:
  """Reads JSON; ValueError in one line for what is none.

  Also refused are a field given twice, whole numbers of more than 300 digits, brackets
  nested deeper than Python reads, and one escape of a pair that makes a character,
  which cannot be printed or written.
  """
  try:
    value = json.loads(
      text.removeprefix("\ufeff"),
      object_pairs_hook=_unique,
      parse_int=_whole,
    )
  except json.JSONDecodeError as error:
    raise ValueError(f"line {error.lineno}: {error.msg}") from error
  except RecursionError as error:
    raise ValueError("brackets are nested too deeply") from error
  if _SURROGATE.search(text):
    try:
      json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
      half = ascii(error.object[error.start])
      raise ValueError(f"{half} is half a character: no text has it") from error
  return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  fields: dict[str, Any] = {}
  for name, value in pairs:
    if name in fields:
      raise ValueError(f"field {name!r} is given twice")
    fields[name] = value
  return fields


def _whole(digits: str) -> int:
  if len(digits) > _MOST_DIGITS:
    raise ValueError(
      f"a number of {len(digits)} digits: expected at most {_MOST_DIGITS}"
    )
  return int(digits)
