"""`--max_restarts`: crashes are followed by a restart, and nothing else is."""

import pathlib
import signal
import subprocess
import sys

import pytest

from tests.program import command
from tests.program.training import TEXT
from tfpipe.program import restarts

ROOT = pathlib.Path(__file__).parents[2]
# A trainer that ends as the next word of a file says: with a code, or by a signal.
ENDS = """
import os, pathlib, signal, sys
assert os.environ["TFPIPE_SUPERVISOR"] == str(os.getppid())
path = pathlib.Path(sys.argv[1])
word, _, rest = path.read_text().partition(" ")
path.write_text(rest)
if word.isdigit():
  sys.exit(int(word))
os.kill(os.getpid(), getattr(signal, word))
"""


@pytest.fixture
def supervise(tmp_path, monkeypatch):
  """Gives a function of endings → (code, endings that are left)."""
  monkeypatch.setattr(restarts, "_TRAINER", (sys.executable, "-c", ENDS))

  def run(ends, max_restarts):
    path = tmp_path / "ends"
    path.write_text(ends + " ")
    return restarts.supervise([str(path)], max_restarts), path.read_text().split()

  return run


@pytest.mark.parametrize(
  ("ends", "max_restarts", "code", "left"),
  [
    ("0 70", 3, 0, ["70"]),
    ("SIGKILL 70 75 0 70", 3, 0, ["70"]),
    ("SIGSEGV SIGABRT 0", 1, 128 + signal.SIGABRT, ["0"]),
    ("70 70 70", 1, 70, ["70"]),
    # A refusal, and a signal to stop, would only come again.
    ("1 0", 3, 1, ["0"]),
    ("130 0", 3, 130, ["0"]),
  ],
)
def test_crashes_are_followed_by_a_restart(supervise, ends, max_restarts, code, left):
  assert supervise(ends, max_restarts) == (code, left)


def test_each_restart_is_shown_with_its_reason(supervise, capsys):
  supervise("SIGKILL 75 70", 2)
  assert capsys.readouterr().out.splitlines() == [
    "restart 1 of 2: the trainer was ended by SIGKILL",
    "restart 2 of 2: the trainer hung",
    "given up after 2 restarts: the trainer failed",
  ]


WAITS = """
import signal, sys, time
def stop(number, frame):
  print("stopping by", signal.Signals(number).name, flush=True)
  sys.exit(int(sys.argv[1]))
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
  ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGTERM, 70)]
)
def test_a_signal_is_handed_on_once_and_ends_the_restarts(number, code):
  supervisor = f"""
import signal, sys
# Whoever runs the tests in the background lets them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tfpipe.program import restarts
restarts._TRAINER = (sys.executable, "-c", {WAITS!r})
sys.exit(restarts.supervise(["{code}"], 5))
"""
  with subprocess.Popen(
    [sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True, cwd=ROOT
  ) as process:
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"stopping by {number.name}\n"
  assert process.returncode == code


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      ("--max_restarts=-1",),
      "error: --max_restarts=-1: must be a whole number, at least 0",
    ),
    (("--max_restarts=two",), "error: --max_restarts=two: must be a whole number"),
    (
      ("--max_restarts=2", "--mode=eval"),
      "error: --max_restarts has no effect with --mode=eval; it is for --mode="
      "train_and_eval or train",
    ),
  ],
)
def test_restarts_that_cannot_be_are_refused(tmp_path, arguments, message):
  found = command.refusal(f"--model={TEXT}", f"--logdir={tmp_path}", *arguments)
  assert found == message


def test_what_is_refused_is_not_tried_again(tmp_path):
  ended = subprocess.run(
    [
      *restarts._TRAINER,
      "--model=nope.Nope",
      f"--logdir={tmp_path}",
      "--max_restarts=3",
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  assert ended.returncode == 1
  assert ended.stdout == ""
  assert ended.stderr.startswith("error: there is no ")


def test_a_signal_before_the_trainer_can_hear_it_is_no_crash():
  deaf = "import time; print('ready', flush=True); time.sleep(600)"
  supervisor = f"""
import sys
from tfpipe.program import restarts, stop
stop.listen()
restarts._TRAINER = (sys.executable, "-c", {deaf!r})
sys.exit(restarts.supervise([], 5))
"""
  with subprocess.Popen(
    [sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True, cwd=ROOT
  ) as process:
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.stdout.read() == (
      "stopped by SIGTERM while starting; nothing is lost\n"
    )
  assert process.returncode == 0
