"""Damaged checkpoints and full disks: nothing finished is lost, and it goes on."""

from __future__ import annotations

import contextlib
import pathlib
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator

import numpy as np

from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import Checkpoint
from tools.fault_runs import Ended, Outcome, equal, final, newest_step, run

_FLIPS = 200


def _truncate(paths: list[pathlib.Path], rng: random.Random) -> None:
  content = paths[-1].read_bytes()
  paths[-1].write_bytes(content[: rng.randrange(1, len(content))])


def _empty(paths: list[pathlib.Path], rng: random.Random) -> None:
  paths[-1].write_bytes(b"")


def _remove(paths: list[pathlib.Path], rng: random.Random) -> None:
  paths[-1].unlink()


def _flip(paths: list[pathlib.Path], rng: random.Random) -> None:
  content = bytearray(paths[-1].read_bytes())
  # The middle of a file is numbers, whose checksum is known.
  content[len(content) // 2 + rng.randrange(1000)] ^= 1 << rng.randrange(8)
  paths[-1].write_bytes(bytes(content))


def _swap(paths: list[pathlib.Path], rng: random.Random) -> None:
  older, newer = paths[-2].read_bytes(), paths[-1].read_bytes()
  paths[-2].write_bytes(newer)
  paths[-1].write_bytes(older)


# Name → what is done to the checkpoints, oldest first; how many are lost by it.
DAMAGES: dict[str, tuple[Callable[[list[pathlib.Path], random.Random], None], int]] = {
  "truncated": (_truncate, 1),
  "empty": (_empty, 1),
  "missing": (_remove, 1),
  "bit flipped": (_flip, 1),
  "swapped": (_swap, 2),
}


def damaged(
  folder: pathlib.Path, finished: pathlib.Path, reference: Checkpoint | None, seed: int
) -> list[Outcome]:
  """Damages copies of a finished run, and lets each run again."""
  rng = random.Random(seed)
  outcomes = []
  for name, (damage, lost) in DAMAGES.items():
    copy = folder / name.replace(" ", "_")
    shutil.copytree(finished, copy)
    found = checkpoint_lib.paths(copy)
    whole = found[-1 - lost]
    damage(found, rng)
    ended = run(copy)
    passed = (
      ended.code == 0
      and f"restored step {int(whole.stem.partition('-')[2])} from" in ended.shown
      and equal(final(copy), reference)
    )
    said = next((s for s in ended.shown.splitlines() if s.startswith("skipped")), "")
    outcomes.append(Outcome(f"checkpoint {name}", passed, said or _last(ended)))
  outcomes += [_all_damaged(folder, finished), _flips(folder, finished, rng)]
  return outcomes


def _all_damaged(folder: pathlib.Path, finished: pathlib.Path) -> Outcome:
  """Without a complete checkpoint a run must not begin anew."""
  copy = folder / "all_damaged"
  shutil.copytree(finished, copy)
  for path in checkpoint_lib.paths(copy):
    path.write_bytes(path.read_bytes()[:-100])
  ended = run(copy)
  message = next((s for s in ended.shown.splitlines() if s.startswith("error:")), "")
  passed = ended.code == 1 and "no complete checkpoint" in message
  return Outcome("all checkpoints damaged", passed, message or _last(ended))


def _flips(folder: pathlib.Path, finished: pathlib.Path, rng: random.Random) -> Outcome:
  """Flips one bit anywhere, many times: refused, or nothing is changed by it."""
  newest = checkpoint_lib.paths(finished)[-1]
  content, expected = newest.read_bytes(), checkpoint_lib.load(newest)
  path = folder / newest.name
  refused = harmless = 0
  for _ in range(_FLIPS):
    flipped = bytearray(content)
    flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(flipped))
    try:
      found = checkpoint_lib.load(path)
    except ValueError:
      refused += 1
      continue
    harmless += all(
      np.array_equal(found.arrays[n], a) for n, a in expected.arrays.items()
    )
  said = f"{refused} refused, {harmless} without effect, of {_FLIPS}"
  return Outcome("any bit flipped", refused + harmless == _FLIPS, said)


@contextlib.contextmanager
def _small_disk(folder: pathlib.Path, size: int) -> Iterator[bool]:
  """Mounts a file system in memory; gives whether that is allowed."""
  folder.mkdir()
  mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
  try:
    mounted = not subprocess.run(mounting, capture_output=True, check=False).returncode
  except OSError:
    mounted = False
  try:
    yield mounted
  finally:
    if mounted:
      subprocess.run(["umount", str(folder)], check=True)


def full_disk(folder: pathlib.Path, reference: Checkpoint | None) -> Outcome:
  """Lets the disk be full at a save; then the run goes on elsewhere."""
  begun = folder / "begun"
  run(begun, "--max_steps=30", "--set=train.keep_checkpoints=1")
  size = checkpoint_lib.paths(begun)[-1].stat().st_size
  # One more checkpoint fits, and of the next one the beginning.
  with _small_disk(folder / "disk", 2 * size + size // 2) as mounted:
    full = folder / "disk" / "run" if mounted else begun
    if mounted:
      shutil.copytree(begun, full)
      ended = run(full)
    else:
      ended = run(full, before=lambda: _limit_files(size // 2))
    kept = newest_step(full)
    after = folder / "after"
    shutil.copytree(full, after)
  reasons = ("No space left on device", "File too large")
  clear = (
    ended.code == 1
    and ended.last.startswith("error: ")
    and any(text in ended.last for text in reasons)
  )
  again = run(after)
  continued = f"restored step {kept} from" in again.shown
  passed = (
    clear
    and kept == (35 if mounted else 30)
    and continued
    and equal(final(after), reference)
  )
  how = "tmpfs" if mounted else "limit of a file's size"
  return Outcome(f"disk full ({how})", passed, _last(ended))


def _limit_files(size: int) -> None:
  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _last(ended: Ended) -> str:
  return f"code {ended.code}: {ended.last}"
