"""The most bytes that a process has held at one time in large blocks of memory.

The C library counts what it maps. With a fixed size from which on it maps blocks of
their own, that is every large tensor for as long as it lives, whoever holds it: neither
what has been freed and kept for later, nor the runtime's many small things.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile

SMALLEST = 2**16
"""Bytes of the smallest block that counts."""

# oneDNN in TensorFlow keeps what is freed for itself.
ENVIRONMENT = {
  "MALLOC_MMAP_THRESHOLD_": str(SMALLEST),
  "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""What a process must be started with."""

_MOST = re.compile(r"max mmap bytes\s*=\s*(\d+)")


class _Mallinfo(ctypes.Structure):
  """The struct of mallinfo2(3)."""

  _fields_ = [
    (name, ctypes.c_size_t)
    for name in (
      *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
      *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
    )
  ]


class LiveBytes:
  """Counts from now on.

  Raises:
    RuntimeError: the process was not started with ENVIRONMENT.
    AttributeError: the C library is not glibc 2.33 or newer.
  """

  def __init__(self) -> None:
    for name, value in ENVIRONMENT.items():
      if os.environ.get(name) != value:
        raise RuntimeError(f"{name} is not {value}: blocks cannot be counted")
    self._libc = ctypes.CDLL("libc.so.6")
    self._libc.mallinfo2.restype = _Mallinfo
    self._before: int = self._libc.mallinfo2().hblkhd

  def most(self) -> int:
    """Returns the most bytes held at one time, without those held at first."""
    return _most_mapped(self._libc) - self._before


def _most_mapped(libc: ctypes.CDLL) -> int:
  """Reads the largest sum so far, which glibc only prints, to the error stream."""
  with tempfile.TemporaryFile() as file:
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
      libc.malloc_stats()
    finally:
      os.dup2(kept, 2)
      os.close(kept)
    file.seek(0)
    found = _MOST.search(file.read().decode())
  if found is None:
    raise RuntimeError("malloc_stats does not print the largest sum of mapped blocks")
  return int(found[1])
