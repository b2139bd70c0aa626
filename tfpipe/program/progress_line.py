"""Progress: one line that is drawn again on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from tfpipe.program import terminal
from tfpipe.program.report import line, show

# What a line has room for first; a plain line has all of it and what else there is.
_FIRST = ("loss", "perplexity", "accuracy", "tokens/s", "examples/s", "mfu")
# Found in metrics.jsonl, and too much for a line.
_FILE_ONLY = ("param_norm", "skips", "step_secs", "flops/s", "memory/")
_BAR = 16
_SECS_BETWEEN = 0.1


class ProgressLine:
  """Shows how far a training is."""

  def __init__(self, max_steps: int) -> None:
    self._max_steps = max_steps
    self._live = terminal.is_there()
    self._last: dict[str, float | int | str] = {}
    self._drawn = 0.0

  def step(self, step: int) -> None:
    """Takes note of a step; on a terminal it shows at once, or a little later."""
    now = time.monotonic()
    if self._live and now >= self._drawn + _SECS_BETWEEN:
      self._drawn = now
      self._draw(step)

  def log(self, step: int, values: Mapping[str, float], left: str) -> None:
    """Shows the values of a step, and the time left.

    The last step's stay on a terminal, too.
    """
    shown = {n: v for n, v in values.items() if not n.startswith(_FILE_ONLY)}
    self._last = {**shown, "eta": left}
    if self._live and step < self._max_steps:
      self._draw(step)
    else:
      show(line({"step": f"{step}/{self._max_steps}", **self._last}))

  def _draw(self, step: int) -> None:
    text = live(step, self._max_steps, self._last, terminal.columns())
    # What is shown next begins where the cursor is left.
    sys.stdout.write(f"{terminal.CLEAR}{text}\r")
    sys.stdout.flush()


def live(
  step: int, max_steps: int, values: Mapping[str, float | int | str], width: int
) -> str:
  """Draws the line of a terminal: a bar, and as many of the values as have room.

  Args:
    step: mini-batches seen.
    max_steps: until which it goes on.
    values: of the last step that was logged, and `eta`.
    width: columns; the last is left free, or some terminals would begin a new line.
  """
  share = step / max_steps
  bar = ("#" * int(_BAR * share)).ljust(_BAR, "-")
  text = f"[{bar}] {int(100 * share):3d}% step={step}/{max_steps}"
  first = [name for name in ("eta", *_FIRST) if name in values]
  for name in [*first, *(name for name in values if name not in first)]:
    longer = f"{text} {line({name: values[name]})}"
    if len(longer) < width:
      text = longer
  return text[: width - 1]
