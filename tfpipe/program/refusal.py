"""What is said of a run that cannot be: a refusal, or where code is wrong."""

from __future__ import annotations

import os
import sysconfig
import traceback

_INSTALLED = (
  *(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")),
  os.path.dirname(os.path.dirname(__file__)),
)


def text(error: BaseException) -> str:
  """Gives what an error says.

  The key of a KeyError alone means nothing to whoever wrote an experiment: a mistake
  on a line that is not tfpipe's, or that led there, is shown with its place.
  ValueErrors are refusals, and name what they refuse.
  """
  place = _place(error) if isinstance(error, _MISTAKES) else ""
  if place:
    return f"{place}: {type(error).__name__}: {error}"
  if isinstance(error, LookupError) and error.args:
    return str(error.args[0])  # str() of a KeyError has quotes around it
  return str(error)


_MISTAKES = (LookupError, AttributeError, TypeError)


def _place(error: BaseException) -> str:
  """Gives file and line of the last call on the way that is of nothing installed."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    inside = [f for f in _INSTALLED if frame.filename.startswith(f + os.sep)]
    if not inside and os.path.exists(frame.filename):
      return f"{os.path.basename(frame.filename)}:{frame.lineno}"
  return ""
