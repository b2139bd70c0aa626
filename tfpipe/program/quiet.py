"""Keeps TensorFlow's start-up notes off the screen."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# What TensorFlow says of itself before its log levels are in force.
_NOTES = re.compile(
  r"WARNING: All log messages before absl::InitializeLog"
  r"|[IWE]\d{4} .*(port|cudart_stub|cuda_platform|cpu_feature_guard)\.cc:\d+\]"
  r"|To enable the following instructions: "
)


@contextlib.contextmanager
def start_up() -> Iterator[None]:
  """Holds back what is written to stderr meanwhile, and then shows all but the notes.

  They come from compiled code, below Python's `sys.stderr`.
  """
  sys.stderr.flush()
  shown = os.dup(2)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(shown, 2)
      os.close(shown)
      held.seek(0)
      for line in held.read().decode(errors="replace").splitlines():
        if not _NOTES.match(line):
          print(line, file=sys.stderr)


@contextlib.contextmanager
def notes() -> Iterator[None]:
  """Leaves out what TensorFlow's Python notes meanwhile, but for warnings."""
  before = logging.root.manager.disable
  logging.disable(logging.INFO)
  try:
    yield
  finally:
    logging.disable(before)
