"""Ends a run that hangs, and says what hangs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from tfpipe.program.restarts import HUNG

_PATIENCE_SECS = 5.0


class Watchdog:
  """A thread that ends the process when something takes longer than it may.

  A hung step is code that no exception can reach: only the process can be ended. Use it
  as a context, again and again but not within itself; the thread lives in it.

  Args:
    secs: how long something may take; 0 waits for ever.
    end: is given the message and ends the process.
  """

  def __init__(self, secs: float, end: Callable[[str], None] | None = None) -> None:
    self._secs = secs
    self._end = end or _end
    self._changed = threading.Condition()
    self._deadline: float | None = None
    self._what = ""
    self._where: Callable[[], str] = str
    self._closed = False
    self._thread = self._new()

  def __enter__(self) -> Watchdog:
    if self._secs:
      self._closed, self._thread = False, self._new()
      self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    with self._changed:
      self._closed = True
      self._changed.notify()
    if self._thread.is_alive():
      self._thread.join()

  @contextlib.contextmanager
  def limit(self, what: str, where: Callable[[], str] = str) -> Iterator[None]:
    """Limits what is done within.

    Args:
      what: it is, for the message.
      where: says where it hangs; called in another thread.
    """
    self._set(time.monotonic() + self._secs, what, where)
    try:
      yield
    finally:
      self._set(None)

  def _new(self) -> threading.Thread:
    return threading.Thread(target=self._watch, name="watchdog", daemon=True)

  def _set(
    self, deadline: float | None, what: str = "", where: Callable[[], str] = str
  ) -> None:
    if not self._secs:
      return
    with self._changed:
      self._deadline, self._what, self._where = deadline, what, where
      self._changed.notify()

  def _watch(self) -> None:
    with self._changed:
      while not self._closed:
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if left is not None and left <= 0:
          self._deadline = None
          limit = f"for more than train.step_timeout_secs={self._secs:g}"
          where = _within(_PATIENCE_SECS, self._where)
          self._end(f"{self._what} {limit}{f': {where}' if where else ''}")
        else:
          # What is longer than a clock can wait for is waited for in parts.
          self._changed.wait(left and min(left, threading.TIMEOUT_MAX))


def _within(secs: float, where: Callable[[], str]) -> str:
  """Asks, but not for ever: what hangs may hold what the answer needs."""
  found: list[str] = []

  def ask() -> None:
    found.append(where())

  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(secs)
  return found[0] if found else "nobody answers where"


def _end(message: str) -> None:
  sys.stdout.flush()
  print(f"hung: {message}", file=sys.stderr, flush=True)
  os._exit(HUNG)
