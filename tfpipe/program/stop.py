"""Stopping by SIGTERM or SIGINT: one line, code 0, nothing lost; a second one quits.

A thread hears the signals, so that they count while the main thread is in a long call
of TensorFlow, where Python runs no handler. What must not be left half done is done
within a `StopSignal`, which remembers the first one; anywhere else it ends the program.
A signal that comes twice at once is one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

from tfpipe.program import terminal

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# `timeout` sends its signal to the process and to its group: it comes twice at once.
_TWICE_SECS = 0.2
_STDOUT = 1  # `sys.stdout` may be locked by the thread that prints


class _Program:
  """What the program does, for the line that says where it was stopped."""

  doing = "starting"

  @staticmethod
  def saved() -> str:
    return "nothing was to be saved"


def at(doing: str, saved: Callable[[], str] | None = None) -> None:
  """Takes note of what the program does from now on.

  Args:
    doing: as in `stopped by SIGTERM while ...`.
    saved: says what there is on the disk; None: as before.
  """
  _Program.doing = doing
  if saved:
    _Program.saved = staticmethod(saved)


def _leave(number: int) -> None:
  """Ends the program where nothing can be left half done."""
  name = signal.Signals(number).name
  _end(f"stopped by {name} while {_Program.doing}; {_Program.saved()}", 0)


def _quit(number: int) -> None:
  name = signal.Signals(number).name
  _end(f"quit by {name}, a second signal; what has been saved is whole", 128 + number)


def _end(line: str, code: int) -> None:
  # An exception would not do: out of an import, a trace or a callback of TensorFlow it
  # comes as another error, with a traceback, or not at all.
  clear = terminal.CLEAR if terminal.is_there() else ""
  with contextlib.suppress(OSError):
    os.write(_STDOUT, f"{clear}{line}\n".encode())
  os._exit(code)


class _Ears:
  """A thread that hears signals, and the handlers of Python's main thread.

  Attributes:
    react: is called with the number of each signal, by the thread or by a handler.
    listens: whether this is a program that `listen` was called for.
    lock: held meanwhile.
  """

  def __init__(self) -> None:
    self.react: Callable[[int], None] = _leave
    self.listens = False
    # A handler can interrupt another one.
    self.lock = threading.RLock()
    self._reader = self._writer = -1
    self._thread: threading.Thread | None = None

  def start(self) -> bool:
    """Begins to hear; says whether it did not before."""
    if self._thread:
      return False
    self._reader, self._writer = os.pipe()
    os.set_blocking(self._reader, False)
    os.set_blocking(self._writer, False)
    signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
    self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
    self._thread.start()
    return True

  def end(self) -> None:
    """Hears no more; handlers stay as they are."""
    if self._thread:
      signal.set_wakeup_fd(-1)
      os.close(self._writer)
      self._thread.join()
      os.close(self._reader)
      self._thread = None

  def handle(self, number: int, frame: FrameType | None) -> None:
    """Is the handler of Python, for what the thread has not heard yet."""
    if self._thread:
      self._hear()
    else:
      self.react(number)

  def _listen(self) -> None:
    there = True
    while there:
      select.select([self._reader], [], [])
      there = self._hear()

  def _hear(self) -> bool:
    """Reacts to what has come; False if nothing can come any more."""
    with self.lock:
      try:
        numbers = os.read(self._reader, 64)
      except BlockingIOError:  # the other one has heard it
        return True
      for number in numbers:
        if number in _SIGNALS:
          self.react(number)
      return bool(numbers)


_EARS = _Ears()


def listen() -> None:
  """Has signals end the program in one line, from now on and wherever it is.

  A program that has been told to ignore SIGINT goes on ignoring it.
  """
  _EARS.start()
  _EARS.listens = True
  for number in _SIGNALS:
    if signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, _EARS.handle)
  atexit.register(ignore)


def end_after(run: Callable[[], object]) -> NoReturn:
  """Runs the program, and ends it at once with its code and message.

  Python would first take down what TensorFlow has, and wait for threads of an input
  that wait for ever. All files are closed by then.

  Args:
    run: what is run.
  """
  code = 0
  try:
    run()
  except SystemExit as ended:
    code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if code and not isinstance(ended.code, int):
      print(ended.code, file=sys.stderr)
  except BaseException:
    traceback.print_exc()
    code = 1
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except OSError:  # e.g. the disk is full
      code = code or 1
  os._exit(code)


def hand_over() -> None:
  """Leaves signals to other handlers, which are there already."""
  _EARS.end()


def ignore() -> None:
  """Ignores signals if the program listens: it is ending, and its code says how."""
  if _EARS.listens:
    for number in _SIGNALS:
      signal.signal(number, signal.SIG_IGN)


class StopSignal:
  """Within it, SIGTERM or SIGINT is remembered; a second one quits.

  Attributes:
    name: of the signal, empty if none came.
  """

  def __init__(self) -> None:
    self.name = ""
    self._time = 0.0
    self._told: list[Callable[[], object]] = []
    self._starts = False
    self._before: dict[signal.Signals, Any] = {}
    self._reaction = _EARS.react

  def __enter__(self) -> StopSignal:
    self._starts = _EARS.start()
    with _EARS.lock:
      self._reaction, _EARS.react = _EARS.react, self._remember
    self._before = {s: signal.signal(s, _EARS.handle) for s in _SIGNALS}
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)
    with _EARS.lock:
      _EARS.react = self._reaction
    if self._starts:
      _EARS.end()

  def tell(self, call: Callable[[], object]) -> None:
    """Has a function called when the first signal comes, at once if it has come.

    Args:
      call: may be called in any thread, and between any two lines of the main one.
    """
    with _EARS.lock:
      self._told.append(call)
      if self.name:
        call()

  def forget(self, call: Callable[[], object]) -> None:
    """Takes back a `tell`."""
    with _EARS.lock:
      self._told.remove(call)

  def _remember(self, number: int) -> None:
    name = signal.Signals(number).name
    if self.name:
      if name != self.name or time.monotonic() - self._time >= _TWICE_SECS:
        _quit(number)
      return
    self.name, self._time = name, time.monotonic()
    for call in self._told:
      call()


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Lets a signal wait for what must not be left half done, and then do its work."""
  with StopSignal() as stop:
    yield
  if stop.name:
    signal.raise_signal(signal.Signals[stop.name])
