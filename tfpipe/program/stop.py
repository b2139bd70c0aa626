"""Stopping by signal: the step is finished and saved first; a second signal quits."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
