"""Output that nobody reads: the program goes on and ends as it would."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.program import training
from tests.program.training import IMAGE

ROOT = pathlib.Path(__file__).parents[2]
TRAINER = (sys.executable, "-m", "tfpipe.trainer")
CHAR = "--model=lm.shakespeare.Char"


def unread(*command: str, stderr: bool = False) -> tuple[int, bytes]:
  """Runs a program whose reader has gone; gives its code and what stderr has."""
  reader, writer = os.pipe()
  os.close(reader)
  try:
    ended = subprocess.run(
      command,
      stdout=writer,
      stderr=writer if stderr else subprocess.PIPE,
      cwd=ROOT,
      check=False,
    )
  finally:
    os.close(writer)
  return ended.returncode, ended.stderr or b""


@pytest.mark.parametrize(
  ("command", "code"),
  [
    ((*TRAINER, CHAR, "--mode=plan"), 0),
    ((*TRAINER, CHAR, "--mode=inspect"), 0),
    ((*TRAINER, "--help"), 1),  # as absl has it
    ((sys.executable, "-m", "tools.paper_tables"), 0),
  ],
)
def test_a_program_that_nobody_reads_ends_quietly(command, code):
  assert unread(*command) == (code, b"")


def test_a_refusal_that_nobody_reads_keeps_its_code():
  assert unread(*TRAINER, CHAR, "--mode=plain", stderr=True) == (1, b"")


def test_a_training_that_nobody_reads_goes_on_to_its_last_step(tmp_path):
  flags = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--max_steps=2", "--mode=train")
  assert unread(*TRAINER, *flags, stderr=True) == (0, b"")
  assert training.newest(tmp_path).step == 2


def test_streams_that_are_closed_from_the_start_are_no_place_for_a_file(tmp_path):
  code = (
    "import os, sys\n"
    "from tfpipe.program import streams\n"
    "streams.outlive_readers()\n"
    f"file = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\n"
    "print('lost'); print('lost', file=sys.stderr); sys.stdout.flush()\n"
    "sys.exit(0 if file > 2 else 7)\n"
  )
  shell = '"$0" -c "$1" >&- 2>&-'
  ended = subprocess.run(
    ["sh", "-c", shell, sys.executable, code], cwd=ROOT, check=False
  )
  assert ended.returncode == 0
  assert (tmp_path / "file").read_bytes() == b""


def test_what_is_read_arrives_whole():
  code = (
    "import sys\n"
    "from tfpipe.program import streams\n"
    "print('before'); streams.outlive_readers()\n"
    "print('é' * 70_000); print('to stderr', file=sys.stderr)"
  )
  command = [sys.executable, "-X", "utf8", "-c", code]
  ended = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
  assert ended.stdout.decode() == "before\n" + "é" * 70_000 + "\n"
  assert ended.stderr == b"to stderr\n"
