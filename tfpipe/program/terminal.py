"""What there is to know of the terminal that a program writes to."""

from __future__ import annotations

import os
import shutil
import sys

CLEAR = "\r\x1b[K"
"""Goes to the start of the line and empties it."""


def is_there() -> bool:
  """Says whether stdout is a terminal that can go back in a line."""
  return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def columns() -> int:
  """Gives its width in characters; 80 if it does not say."""
  return shutil.get_terminal_size((80, 24)).columns
