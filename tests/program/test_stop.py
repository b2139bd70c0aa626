"""Signals: a run that is asked to stop, asked twice, or killed."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.program import training
from tests.program.training import CHAR, IMAGE, TINY_CHAR
from tfpipe.program.stop import StopSignal, held
from tfpipe.program.train import Trainer, restore_newest

AMOEBANET = "image.fashion_mnist.AmoebaNetTiny"
ROOT = pathlib.Path(__file__).parents[2]
ACCUMULATES = "task.learner.accumulate_steps=2"
NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers_as_before():
  before = {number: signal.getsignal(number) for number in NUMBERS}
  # Whoever runs the tests in the background lets them, and what they start, ignore it.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def program(code):
  """Runs code; gives its exit code and what it wrote to stdout and to stderr."""
  ended = subprocess.run(
    [sys.executable, "-c", f"import os, signal\n{code}"],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  return ended.returncode, ended.stdout, ended.stderr


LISTENS = """
from tfpipe.program import stop
stop.listen()
stop.at("baking", lambda: "all bread is saved")
"""
STOPPED = "stopped by {} while baking; all bread is saved\n"
KILL = "os.kill(os.getpid(), signal.{})\n"
STAYS = KILL + "print('still here', flush=True)\n"
SECOND = "quit by {}, a second signal; what has been saved is whole\n"
# A lock that is taken twice: no signal interrupts it, and Python runs no handler.
NEVER_ENDS = """
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
print("waiting", flush=True)
libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
  "around",
  [
    "",
    "from tfpipe.program import quiet\nhidden = quiet.start_up()\nhidden.__enter__()\n",
    "with stop.StopSignal(): pass\n",
  ],
)
def test_a_signal_ends_the_program_with_one_line_and_code_0(number, around):
  ended = program(LISTENS + around + STAYS.format(number.name))
  assert ended == (0, STOPPED.format(number.name), "")


@pytest.mark.parametrize(
  ("around", "sent", "code", "line"),
  [
    ("", (signal.SIGTERM,), 0, STOPPED.format("SIGTERM")),
    (
      "inner = stop.StopSignal()\ninner.__enter__()\n",
      (signal.SIGTERM, signal.SIGINT),
      130,
      SECOND.format("SIGINT"),
    ),
  ],
)
def test_signals_are_heard_where_python_runs_no_handler(around, sent, code, line):
  with subprocess.Popen(
    [sys.executable, "-c", LISTENS + around + NEVER_ENDS],
    stdout=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  ) as process:
    wait_for(process, "^waiting$")
    for number in sent:
      process.send_signal(number)
    assert process.stdout
    assert process.stdout.read() == line
  assert process.returncode == code


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_remembered_where_something_must_be_finished(number):
  with StopSignal() as stop:
    assert stop.name == ""
    os.kill(os.getpid(), number)
    assert stop.name == number.name


@pytest.mark.parametrize("listens", [LISTENS, "from tfpipe.program import stop\n"])
@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_second_signal_quits_a_program(listens, number, code):
  within = (
    "stop._TWICE_SECS = 0\nwith stop.StopSignal():\n"
    f"  os.kill(os.getpid(), signal.SIGTERM)\n  print('still here', flush=True)\n"
    f"  os.kill(os.getpid(), signal.{number})\n  print('never')\n"
  )
  assert program(listens + within) == (code, "still here\n" + SECOND.format(number), "")


def test_a_signal_that_comes_twice_at_once_is_one():
  kill = STAYS.format("SIGTERM").replace("\n", "\n  ")
  code = f"stop._TWICE_SECS = 10**6\nwith stop.StopSignal():\n  {kill}{kill}"
  assert program(LISTENS + code) == (0, "still here\nstill here\n", "")


def test_a_signal_waits_for_what_must_not_be_left_half_done():
  code = "with stop.held():\n  " + STAYS.format("SIGTERM").replace("\n", "\n  ")
  shown = "still here\n" + STOPPED.format("SIGTERM")
  assert program(f"{LISTENS}{code}\nprint('never')") == (0, shown, "")


def test_within_a_training_such_a_signal_ends_the_training():
  with StopSignal() as outer:
    with held():
      os.kill(os.getpid(), signal.SIGTERM)
      assert outer.name == ""
    assert outer.name == "SIGTERM"


def test_whoever_ignores_interrupts_goes_on_ignoring_them():
  ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
  assert program(ignore + LISTENS + STAYS.format("SIGINT")) == (0, "still here\n", "")


def test_a_program_that_fails_keeps_its_code():
  failing = "import sys\nstop.ignore()\n" + STAYS.format("SIGTERM") + "sys.exit(70)"
  assert program(LISTENS + failing) == (70, "still here\n", "")


def test_handlers_are_as_before_after_training_whether_it_ends_or_fails():
  before = [signal.getsignal(number) for number in NUMBERS]
  with StopSignal():
    assert [signal.getsignal(number) for number in NUMBERS] != before
  assert [signal.getsignal(number) for number in NUMBERS] == before
  with pytest.raises(ZeroDivisionError), StopSignal():
    _ = 1 / 0
  assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.parametrize("number", NUMBERS)
def test_the_step_in_which_a_signal_comes_is_finished_and_saved(
  tf, tmp_path, capsys, monkeypatch, number
):
  run = training.make_run(IMAGE)
  dataset = run.input.dataset

  def batches(start_step):
    for step, batch in enumerate(dataset(start_step)):
      if step == 2:
        os.kill(os.getpid(), number)
      yield batch

  monkeypatch.setattr(run.input, "dataset", batches)
  Trainer(run, tmp_path).train()
  assert training.newest(tmp_path).step == 3
  shown = capsys.readouterr().out.splitlines()
  assert shown[-2:] == [
    f"saved {tmp_path}/checkpoint-00000003.npz",
    f"stopped by {number.name} after step 3; the same command continues",
  ]
  assert training.metrics(tmp_path, "eval") == []


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_within_an_evaluation_leaves_it_to_the_next_run(
  tf, tmp_path, capsys, monkeypatch, number
):
  run = training.make_run(IMAGE)
  dataset = run.eval_input.dataset

  def batches():
    for batch in dataset():
      os.kill(os.getpid(), number)
      yield batch

  monkeypatch.setattr(run.eval_input, "dataset", batches)
  Trainer(run, tmp_path).train()
  last = run.params.train.max_steps
  assert training.newest(tmp_path).step == last
  shown = capsys.readouterr().out.splitlines()
  assert shown[-1] == (
    f"stopped by {number.name} after step {last}; the same command continues"
  )
  assert training.metrics(tmp_path, "eval") == []
  again = training.make_run(IMAGE)
  assert restore_newest(again, tmp_path)
  Trainer(again, tmp_path).train()
  (record,) = training.metrics(tmp_path, "eval")
  assert record["step"] == last


def start(*arguments, name=IMAGE, options=()):
  """Starts the trainer as a user does."""
  return subprocess.Popen(
    [sys.executable, *options, "-m", "tfpipe.trainer", f"--model={name}", *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    cwd=ROOT,
  )


def wait_for(process, pattern):
  """Reads lines up to the first that matches; gives it."""
  lines = []
  for line in process.stdout:
    lines.append(line)
    if re.search(pattern, line):
      return line
  raise AssertionError(f"no line matches {pattern}:\n" + "".join(lines))


@pytest.mark.parametrize(
  ("number", "options", "line", "where"),
  [
    # In the imports of the trainer, and in the trace of the step.
    (
      signal.SIGINT,
      ("-X", "importtime"),
      r"\| +absl\.flags$",
      "starting; nothing was to be saved",
    ),
    (
      signal.SIGTERM,
      (),
      r"^building the step",
      "building the step; nothing is saved yet",
    ),
  ],
)
def test_a_signal_before_the_first_step_ends_the_program_in_one_line(
  tmp_path, number, options, line, where
):
  arguments = (f"--logdir={tmp_path}", "--mode=train")
  with start(*arguments, name=AMOEBANET, options=options) as process:
    wait_for(process, line)
    process.send_signal(number)
    assert process.stdout
    rest = process.stdout.read()
  assert process.returncode == 0
  assert "Traceback" not in rest
  assert rest.endswith(f"stopped by {number.name} while {where}\n")
  described = {"params.txt", "changes.txt", "plan.txt", "schedule.csv", "versions.txt"}
  assert {path.name for path in tmp_path.iterdir()} <= described


@pytest.fixture(scope="module")
def text_run(tf, tmp_path_factory):
  folder = tmp_path_factory.mktemp("text_run")
  training.train(folder, CHAR, "train.max_steps=1", *TINY_CHAR)
  return folder


@pytest.mark.parametrize(
  ("arguments", "line", "where"),
  [
    (("--mode=eval",), r"^restored step 1 ", r"(starting|building|evaluating).*"),
    (("--mode=eval", "--watch"), r"^no process trains in ", r"watching /.*"),
    (
      ("--mode=decode", "--num_tokens=1000000"),
      r"^restored step 1 ",
      r"(starting TensorFlow|decoding)",
    ),
    (("--mode=export",), r"^restored step 1 ", r"(starting TensorFlow|exporting)"),
    (
      ("--dry_run",),
      r"^restored step 1 ",
      r"(starting TensorFlow|trying the first .*)",
    ),
  ],
)
def test_every_mode_is_stopped_with_one_line(text_run, arguments, line, where):
  before = {path.name for path in text_run.iterdir()}
  tiny = [f"--set={override}" for override in TINY_CHAR]
  with start(f"--logdir={text_run}", *arguments, *tiny, name=CHAR) as process:
    wait_for(process, line)
    process.terminate()
    assert process.stdout
    rest = process.stdout.read().splitlines()
  assert process.returncode == 0
  assert re.fullmatch(rf"stopped by SIGTERM while {where}; saved is step 1", rest[-1])
  assert not [text for text in rest if "Traceback" in text]
  assert {path.name for path in text_run.iterdir()} <= before | {"train", "eval"}


def test_a_program_killed_and_one_asked_to_stop_continue_as_if_nothing_had_happened(
  tf, tmp_path
):
  logdir = tmp_path / "interrupted"
  arguments = (f"--logdir={logdir}", "--max_steps=1000000", f"--set={ACCUMULATES}")

  with start(*arguments) as process:
    wait_for(process, r"^saved .*checkpoint-00000004\.npz$")
    process.kill()
  assert process.returncode == -signal.SIGKILL
  saved = training.newest(logdir).step
  assert saved >= 4

  with start(*arguments, "--num_partitions=3", "--remat=layer") as process:
    wait_for(process, rf"^restored step {saved} from {logdir}$")
    wait_for(process, rf"^step={saved + 3}/1000000 ")
    process.terminate()
    line = wait_for(process, r"^stopped by")
    assert process.stdout
    rest = process.stdout.read()
  assert process.returncode == 0
  assert rest == ""
  step = training.newest(logdir).step
  assert step >= saved + 3
  assert line == f"stopped by SIGTERM after step {step}; the same command continues\n"

  last = f"train.max_steps={step + 3}"
  layout = ("pipeline.num_partitions=4", "pipeline.schedule=1f1b")
  training.train(logdir, IMAGE, last, ACCUMULATES, *layout)
  whole = tmp_path / "uninterrupted"
  often = "train.save_interval_steps=1000000"
  training.train(whole, IMAGE, last, ACCUMULATES, often, "pipeline.num_partitions=1")
  assert training.differences(training.newest(logdir), training.newest(whole)) == []


@pytest.mark.parametrize(
  ("ending", "expected"),
  [
    ("", (0, "made\n", "")),
    ("sys.exit()", (0, "made\n", "")),
    ("sys.exit(70)", (70, "made\n", "")),
    ("sys.exit('error: bread')", (1, "made\n", "error: bread\n")),
  ],
)
def test_the_program_ends_with_its_code_though_a_thread_does_not(ending, expected):
  code = (
    "import sys, threading\nfrom tfpipe.program import stop\n"
    "threading.Thread(target=threading.Event().wait).start()\n"
    f"def run():\n  print('made')\n  {ending}\nstop.end_after(run)"
  )
  assert program(code) == expected


def test_an_error_of_the_program_is_shown_with_its_traceback():
  code = "from tfpipe.program import stop\nstop.end_after(lambda: 1 / 0)"
  number, shown, error = program(code)
  assert (number, shown) == (1, "")
  assert error.startswith("Traceback")
  assert error.endswith("ZeroDivisionError: division by zero\n")
