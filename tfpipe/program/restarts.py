"""Starts the trainer again after a crash: `--max_restarts`.

A parent process that never imports TensorFlow runs the trainer as its child. What
would end the same way again is not repeated: a refusal, numbers that are not finite, a
signal to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tfpipe.program import stop
from tfpipe.program.modes import TRAINING
from tfpipe.program.report import show

FAILED = 70
"""Code of a trainer in which a step or its input has failed."""
HUNG = 75
"""Code of a trainer that hung."""
_TRAINER = (sys.executable, "-m", "tfpipe.trainer")
_SUPERVISOR = "TFPIPE_SUPERVISOR"
"""Variable of the environment that tells a trainer the process that restarts it."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_FORWARDED = (*_STOPS, signal.SIGHUP)


def supervise(arguments: Sequence[str], max_restarts: int) -> int:
  """Runs the trainer to its end, and again after each crash.

  Signals to stop are handed on, and nothing is started after them.

  Args:
    arguments: of the trainer's command line.
    max_restarts: most crashes that are followed by a restart.

  Returns:
    the code of the last trainer; 128 + number if a signal has ended it.
  """
  command = [*_TRAINER, *arguments]
  with _Child() as child:
    code, number = child.run(command), 0
    while _is_crash(code) and not child.stopped and number < max_restarts:
      number += 1
      show(f"restart {number} of {max_restarts}: the trainer {_ended(code)}")
      code = child.run(command)
    if _is_crash(code) and not child.stopped:
      show(f"given up after {number} restarts: the trainer {_ended(code)}")
    if child.stopped and -code in _STOPS:
      # It came before the trainer could hear it.
      show(f"stopped by {signal.Signals(-code).name} while starting; nothing is lost")
      return 0
  return 128 - code if code < 0 else code


def wanted(flags: Any) -> bool:
  """Says whether the trainer is to be a child of this process.

  It is not if it is one already, nor for what it will refuse.

  Args:
    flags: absl's FlagValues.
  """
  is_child = os.environ.get(_SUPERVISOR) == str(os.getppid())
  trains = flags.mode in TRAINING and not flags.dry_run
  return flags.max_restarts > 0 and trains and not is_child


def check(max_restarts: int) -> None:
  """Refuses a number of restarts that cannot be.

  Raises:
    ValueError: naming it.
  """
  if max_restarts < 0:
    raise ValueError(
      f"--max_restarts={max_restarts}: must be a whole number, at least 0"
    )


class _Child:
  """The trainer that runs, and the signals that it is to get.

  It has a process group of its own: a Ctrl-C at the terminal reaches it once, from
  here, and not twice, which would quit it.
  """

  def __init__(self) -> None:
    self.stopped = False
    self._process: subprocess.Popen[bytes] | None = None
    self._before: dict[signal.Signals, Any] = {}

  def __enter__(self) -> _Child:
    for number in _FORWARDED:
      if signal.getsignal(number) is not signal.SIG_IGN:
        self._before[number] = signal.signal(number, self._forward)
    stop.hand_over()
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def run(self, command: Sequence[str]) -> int:
    """Runs a trainer and gives its code."""
    # A signal in between must reach the one that is being started.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
      self._process = subprocess.Popen(
        command,
        process_group=0,
        env={**os.environ, _SUPERVISOR: str(os.getpid())},
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED),
      )
    finally:
      signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    return self._process.wait()

  def _forward(self, number: int, frame: FrameType | None) -> None:
    self.stopped = True
    if self._process is not None:
      self._process.send_signal(number)


def _is_crash(code: int) -> bool:
  return code < 0 or code in (FAILED, HUNG)


def _ended(code: int) -> str:
  if code < 0:
    return f"was ended by {signal.Signals(-code).name}"
  return "hung" if code == HUNG else "failed"
