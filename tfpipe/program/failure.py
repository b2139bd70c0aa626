"""What ends a run at a step, and the code to exit with."""

from __future__ import annotations

import re
import sys

from tfpipe import error_text
from tfpipe.program.restarts import FAILED


class StepError(RuntimeError):
  """A step, or its input, has failed; the message names the place."""


class BuildError(StepError):
  """The step could not be built, and could not the next time either."""


def failed(error: StepError) -> int:
  """Shows on stderr what has failed, and gives the code to exit with."""
  built = not isinstance(error, BuildError)
  kind = "failed" if built else "error"
  print(f"{kind}: {error_text.printable(str(error))}", file=sys.stderr)
  return FAILED if built else 1


def short(error: BaseException) -> str:
  """Gives kind and message of an error in one line, without TensorFlow's frames."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  # What is between `Graph execution error` and the message is about traces.
  whole = [line for line in lines if "{{function_node" in line and "[[" not in line]
  text = re.sub(r"\{\{.*?\}\}\s*", "", (whole or lines or [""])[0])
  # Of several errors at once, the first.
  text = re.sub(r"^\(\d+\) [A-Z_]+:\s*", "", text)
  return f"{type(error).__name__}: {text}"
