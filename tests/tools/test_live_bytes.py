"""What a process held in large blocks is counted, whether it still holds it or not."""

import os
import subprocess
import sys

import pytest

from tools import live_bytes

_CODE = """
from tools.live_bytes import LiveBytes
before = bytearray(2**22)
live = LiveBytes()
blocks = [bytearray(2**24) for _ in range(3)]
del blocks
kept = bytearray(2**23)
print(live.most())
"""


def test_the_most_that_was_held_at_one_time_counts_without_what_was_there_before():
  run = subprocess.run(
    [sys.executable, "-c", _CODE],
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, **live_bytes.ENVIRONMENT},
  )
  assert run.returncode == 0, run.stderr
  # A mapped block has whole pages, and a header.
  assert 3 * 2**24 <= int(run.stdout) <= 3 * (2**24 + 2 * 4096) + live_bytes.SMALLEST


def test_without_its_environment_nothing_is_counted(monkeypatch):
  monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
  with pytest.raises(RuntimeError, match="MALLOC_MMAP_THRESHOLD_ is not 65536"):
    live_bytes.LiveBytes()
