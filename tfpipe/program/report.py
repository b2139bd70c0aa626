"""What a run shows: the first screen, a line of progress."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping

from tfpipe import error_text, plan_text
from tfpipe import plan as plan_lib
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program import terminal
from tfpipe.schedule import draw
from tfpipe.units import format_secs

_LONGEST_LIST = 256


def show(line: str) -> None:
  """Prints a line at once, in place of a line of progress if there is one."""
  text = error_text.printable(line)
  print(terminal.CLEAR + text if terminal.is_there() else text, flush=True)


def first_screen(params: Params, changes: str, plan: Plan) -> str:
  """Says what will run: experiment, what differs from it, the cut, the predictions."""
  parts = [f"experiment {params.name}"]
  if changes:
    parts.append("changed from the experiment:\n" + indent(changes))
  parts += [plan_lib.table(plan), plan_text.memory_line(plan), plan_lib.summary(plan)]
  return "\n".join(parts + _rate_note(params))


def _rate_note(params: Params) -> list[str]:
  """Says so if the learning rate has come to 0 before the end: steps without effect."""
  learner, steps = params.task.learner, params.train.max_steps
  if learner.lr_schedule is None:
    return []
  last = (steps - 1) // learner.accumulate_steps
  # The first update of a warm-up has rate 0, too.
  if last < 1 or learner.lr_schedule.Instantiate().value(last):
    return []
  return [
    f"note: the learning rate is 0 at the last step, {steps}: task.learner.lr_schedule "
    "ends before train.max_steps does"
  ]


def differences(before: str, after: str) -> str:
  """Draws how two texts of Params differ: lines with - were so, lines with + are so."""
  lines = difflib.ndiff(before.splitlines(), after.splitlines())
  return "\n".join(line for line in lines if line.startswith(("- ", "+ ")))


def lists(plan: Plan) -> str:
  """Draws what each device does, in order, unless that is too long to be read."""
  longest = max(len(actions) for actions in plan.schedule.actions)
  if longest > _LONGEST_LIST:
    return (
      f"schedule: up to {longest} actions a device; --mode=inspect --inspect=schedule "
      "lists them"
    )
  return draw.lists(plan.schedule)


def line(values: Mapping[str, float | int | str]) -> str:
  """Formats a stable, greppable line: `step=10 loss=2.31 ...`."""
  return " ".join(f"{name}={_format(value)}" for name, value in values.items())


class Progress:
  """Rate and remaining time, measured between lines of progress."""

  def __init__(self, step: int, max_steps: int, batch_size: int) -> None:
    self._max_steps = max_steps
    self._batch_size = batch_size
    self.restart(step)

  def restart(self, step: int) -> None:
    """Starts the measurement anew, after a pause that is no training."""
    self._step, self._time = step, time.monotonic()

  def rate(self, step: int) -> tuple[float, str]:
    """Gives examples per second since the last call, and the time left as text.

    Without a step since then, 0, and a text that says so.
    """
    secs = max(time.monotonic() - self._time, 1e-9)
    steps = step - self._step
    self.restart(step)
    if not steps:
      return 0.0, "unknown"
    left = secs / steps * (self._max_steps - step)
    return steps * self._batch_size / secs, format_secs(left)


def _format(value: float | int | str) -> str:
  return f"{value:.5g}" if isinstance(value, float) else str(value)


def indent(text: str) -> str:
  """Moves lines two columns in."""
  return "\n".join("  " + part for part in text.splitlines())
