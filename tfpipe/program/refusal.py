"""What is said of a run that cannot be: a refusal, or where code is wrong."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback

from tfpipe import error_text

_INSTALLED = (
  *(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")),
  os.path.dirname(os.path.dirname(__file__)),
)


def text(error: BaseException, where: object = "") -> str:
  """Gives what an error says.

  The key of a KeyError alone means nothing to whoever wrote an experiment: a mistake
  on a line that is not tfpipe's, or that led there, is shown with its place.
  ValueErrors are refusals, and name what they refuse, but those that TensorFlow raises
  in an FProp.

  Args:
    error: what was raised.
    where: the file or folder, if the error is of one and does not name it.
  """
  layer = _layer(error)
  place = _place(error) if layer or isinstance(error, _MISTAKES) else ""
  if place:
    return f"{place}: {layer}{type(error).__name__}: {error}"
  return error_text.of(error, where)


_NOTE = re.compile(r"in (layer '.*')")
_MISTAKES = (LookupError, AttributeError, TypeError)


def _layer(error: BaseException) -> str:
  """Names the layer whose FProp raised an error; empty if none did."""
  frames = traceback.extract_tb(error.__traceback__)
  notes = map(_NOTE.fullmatch, getattr(error, "__notes__", []))
  name = next((note[1] for note in notes if note), "")
  return f"{name}: " if name and any(f.name == "FProp" for f in frames) else ""


def _place(error: BaseException) -> str:
  """Gives file and line of the last call on the way that is of nothing installed."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    inside = [f for f in _INSTALLED if frame.filename.startswith(f + os.sep)]
    if not inside and os.path.exists(frame.filename):
      return f"{os.path.basename(frame.filename)}:{frame.lineno}"
  return ""
