"""Batches that a thread fetches, so that a signal can end the wait for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from tfpipe.input.base import Input
from tfpipe.program.failure import StepError, short
from tfpipe.program.stop import StopSignal
from tfpipe.program.watchdog import Watchdog

# What an input may still take to give a batch when the program is asked to stop.
_PATIENCE_SECS = 2.0
_ASKED = object()
_END = object()


class GivenUp(Exception):  # noqa: N818 (nothing is wrong)
  """A batch that is no longer waited for, since a signal came."""


class Fetcher(Iterator[Any]):
  """Gives what an iterator gives. Use it as a context, which the thread lives in.

  An input that waits for a file or another machine may do so for ever, within
  TensorFlow, where no exception reaches it. A thread that is in there when the context
  is left stays. Nor does the context wait for what the input reads ahead.

  Args:
    items: the iterator, which nobody else may keep: its end waits for what is being
      read, and must come in the thread.
    stop: tells of signals.
  """

  def __init__(self, items: Iterator[Any], stop: StopSignal | None = None) -> None:
    self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._thread = threading.Thread(
      target=self._fetch, args=(items,), name="fetcher", daemon=True
    )
    self._stop = stop

  def __enter__(self) -> Fetcher:
    self._thread.start()
    if self._stop:
      self._stop.tell(self._ask)
    return self

  def __exit__(self, *_: object) -> None:
    if self._stop:
      self._stop.forget(self._ask)
    self._wanted.put(False)

  def __next__(self) -> Any:
    """Gives the next item.

    Raises:
      GivenUp: a signal to stop came, and no item soon after.
      StopIteration: there is none.
      Exception: whatever the iterator raised.
    """
    self._wanted.put(True)
    answer = self._answers.get()
    if answer is _ASKED:
      try:
        answer = self._answers.get(timeout=_PATIENCE_SECS)
      except queue.Empty:
        raise GivenUp from None
    item, error = answer
    if error is not None:
      raise error
    if item is _END:
      raise StopIteration
    return item

  def _ask(self) -> None:
    self._answers.put(_ASKED)

  def _fetch(self, items: Iterator[Any]) -> None:
    while self._wanted.get():
      try:
        self._answers.put((next(items, _END), None))
      except Exception as error:  # it is the one who waits that is to know
        self._answers.put((None, error))


def next_batch(batches: Fetcher, what: str, source: Input, watchdog: Watchdog) -> Any:
  """Gives the next mini-batch, None at the end of the data.

  Args:
    batches: of the input.
    what: waits for it.
    source: the input.
    watchdog: limits the wait.

  Raises:
    GivenUp: a signal to stop came meanwhile.
    StepError: the input has failed.
  """
  name = type(source).__name__
  with watchdog.limit(f"{what} waits for the input, {name},"):
    try:
      return next(batches, None)
    except GivenUp:
      raise
    except Exception as error:
      reason = f"{what}: the input, {name}, has failed: {short(error)}"
      raise StepError(reason) from error
