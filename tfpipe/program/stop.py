"""Stopping by signal: the step is finished and saved first; a second signal quits.

Before and after the training there is nothing to finish: the first signal quits.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def quit_on_interrupt() -> None:
  """Lets SIGINT end the program with one line and code 130, wherever it is.

  KeyboardInterrupt would not do: out of an import, a trace or a callback of TensorFlow
  it comes as another error, with a traceback, or not at all. A program that has been
  told to ignore SIGINT goes on ignoring it.
  """
  default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
  if not default or sys.stderr is None:
    return
  shown = os.dup(2)  # stderr itself is held back while TensorFlow starts

  def quit_now(number: int, frame: FrameType | None) -> None:
    os.write(shown, b"interrupted; what has been saved is whole\n")
    os._exit(128 + number)

  signal.signal(signal.SIGINT, quit_now)


class StopSignal:
  """Remembers that SIGTERM or SIGINT came.

  Attributes:
    name: of the signal, empty if none came.
  """

  def __init__(self) -> None:
    self.name = ""
    self._before: dict[signal.Signals, Any] = {}

  def __enter__(self) -> StopSignal:
    self._before = {s: signal.signal(s, self._handle) for s in _SIGNALS}
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._restore()

  def _handle(self, number: int, frame: FrameType | None) -> None:
    self.name = signal.Signals(number).name
    self._restore()

  def _restore(self) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
