"""Writing to stdout and stderr after whoever read them has gone, as `head` does."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

_NAMES = {1: "stdout", 2: "stderr"}


def outlive_readers() -> None:
  """Has a program go on, and end as it would, when nobody reads what it writes.

  A training must not lose work by that. What was closed from the start is open
  afterwards, so that no file of the program takes its place.
  """
  for descriptor, name in _NAMES.items():
    before = getattr(sys, name)
    if before is None:
      null = os.open(os.devnull, os.O_RDWR)
      if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    else:
      before.flush()
    setattr(sys, name, _stream(descriptor, before))


class _Unread(io.FileIO):
  """A file that loses what nobody takes."""

  def write(self, data: Any, /) -> int | None:
    try:
      return super().write(data)
    except BrokenPipeError:
      return len(data)


def _stream(descriptor: int, before: io.TextIOWrapper | None) -> io.TextIOWrapper:
  """Makes the stream that was there before anew."""
  file = io.BufferedWriter(_Unread(descriptor, "wb", closefd=False))
  if before is None:
    return io.TextIOWrapper(file, encoding="utf-8")
  return io.TextIOWrapper(
    file,
    encoding=before.encoding,
    errors=before.errors,
    line_buffering=before.line_buffering or before.write_through,
  )
