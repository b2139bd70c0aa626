"""What is said of a run that cannot be: a refusal, or where code is wrong."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from traceback import FrameSummary

from tfpipe import error_text
from tfpipe.program.failure import short

_TFPIPE = os.path.dirname(os.path.dirname(__file__))
_INSTALLED = tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib", "platlib"))


def text(error: BaseException, where: object = "") -> str:
  """Gives what an error says.

  The key of a KeyError alone means nothing to whoever wrote an experiment: a mistake
  on a line that is not tfpipe's, or that led there, is shown with its place. Lines of
  the program that has caught it, such as one of `tools`, are no more the user's.
  ValueErrors are refusals, and name what they refuse, but those that come out of the
  code of a layer.

  Args:
    error: what was raised.
    where: the file or folder, if the error is of one and does not name it.
  """
  if layer := layer_name(error):
    return in_layer(f"layer {layer!r}", error)
  place = _place(_theirs(error)) if isinstance(error, _MISTAKES) else ""
  if place:
    return f"{place}: {type(error).__name__}: {error}"
  return error_text.of(error, where)


_NOTE = re.compile(r"in layer '(.*)'")
_MISTAKES = (LookupError, AttributeError, TypeError)


def layer_name(error: BaseException) -> str:
  """Names the layer whose code raised an error; empty if none did."""
  notes = map(_NOTE.fullmatch, getattr(error, "__notes__", []))
  return next((note[1] for note in notes if note), "")


def in_layer(layer: str, error: BaseException) -> str:
  """Says what is wrong in the code of a layer, and where: its own line, if it has one.

  Args:
    layer: names it.
    error: what its `FProp` or `Predict` raised.
  """
  cause = error
  while cause.__cause__ is not None:
    cause = cause.__cause__
  frames = _frames(cause)
  calls = [_is_in(os.path.join(_TFPIPE, "pipeline"), frame) for frame in frames]
  if True in calls:
    frames = frames[len(calls) - calls[::-1].index(True) :]
  place = _place(frames) or _place(frames, of_tfpipe=True)
  return f"{layer}{place and f', {place}'}: {short(error)}"


def _theirs(error: BaseException) -> list[FrameSummary]:
  """Gives the calls that are not of the program that has caught an error."""
  frames = _frames(error)
  catcher = os.path.dirname(frames[0].filename) if frames else ""
  return [frame for frame in frames if not _is_in(catcher, frame)]


def _frames(error: BaseException) -> list[FrameSummary]:
  found = traceback.extract_tb(error.__traceback__)
  return [frame for frame in found if os.path.exists(frame.filename)]


def _place(frames: list[FrameSummary], *, of_tfpipe: bool = False) -> str:
  """Gives file and line of the last call on the way that is of nothing installed."""
  installed = _INSTALLED if of_tfpipe else (*_INSTALLED, _TFPIPE)
  for frame in reversed(frames):
    if not any(_is_in(folder, frame) for folder in installed):
      return f"{os.path.basename(frame.filename)}:{frame.lineno}"
  return ""


def _is_in(folder: str, frame: FrameSummary) -> bool:
  return frame.filename.startswith(folder + os.sep)
