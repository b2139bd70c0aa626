"""Signals: a run that is asked to stop, asked twice, or killed."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests.program import training
from tests.program.training import IMAGE
from tfpipe.program.stop import StopSignal
from tfpipe.program.train import Trainer, restore_newest

AMOEBANET = "image.fashion_mnist.AmoebaNetTiny"
ROOT = pathlib.Path(__file__).parents[2]
INTERRUPTED = "interrupted; what has been saved is whole\n"
ACCUMULATES = "task.learner.accumulate_steps=2"
NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers_as_before():
  before = {number: signal.getsignal(number) for number in NUMBERS}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_remembered_and_the_second_one_does_what_it_did_before(number):
  came = []
  signal.signal(number, lambda *arguments: came.append(arguments))
  with StopSignal() as stop:
    assert stop.name == ""
    os.kill(os.getpid(), number)
    assert stop.name == number.name
    assert came == []
    os.kill(os.getpid(), number)
    assert len(came) == 1


def test_the_second_signal_quits_a_program():
  code = """
import os, signal
from tfpipe.program.stop import StopSignal
with StopSignal():
  os.kill(os.getpid(), signal.SIGTERM)
  print("still here", flush=True)
  os.kill(os.getpid(), signal.SIGTERM)
  print("never")
"""
  ended = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
  )
  assert ended.returncode == -signal.SIGTERM
  assert ended.stdout == "still here\n"


def program(code):
  """Runs code that has been told to quit on SIGINT, and then sends it to itself."""
  quits = f"""
import os, signal
from tfpipe.program import stop
{code}
os.kill(os.getpid(), signal.SIGINT)
print("still here")
"""
  return subprocess.run(
    [sys.executable, "-c", quits], capture_output=True, text=True, cwd=ROOT, check=False
  )


@pytest.mark.parametrize(
  "around",
  [
    "",
    "from tfpipe.program import quiet\nhidden = quiet.start_up()\nhidden.__enter__()",
  ],
)
def test_an_interrupt_outside_the_training_quits_with_one_line(around):
  ended = program(f"stop.quit_on_interrupt()\n{around}")
  assert ended.returncode == 130
  assert ended.stdout == ""
  assert ended.stderr == INTERRUPTED


def test_whoever_ignores_interrupts_goes_on_ignoring_them():
  ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
  ended = program(f"{ignore}\nstop.quit_on_interrupt()")
  assert (ended.returncode, ended.stdout, ended.stderr) == (0, "still here\n", "")


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
  ("options", "line"),
  [
    # In the imports of the trainer, of TensorFlow, and in the trace of the step.
    (("-X", "importtime"), r"\| +absl\.flags$"),
    ((), r"^experiment "),
    ((), r"^building the step"),
  ],
)
def test_an_interrupt_before_the_first_step_ends_the_program_in_one_line(
  tmp_path, options, line
):
  arguments = (f"--logdir={tmp_path}", "--mode=train")
  with start(*arguments, name=AMOEBANET, options=options) as process:
    wait_for(process, line)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    rest = process.stdout.read()
  assert process.returncode == 130
  assert "Traceback" not in rest
  assert rest.endswith(INTERRUPTED)
  described = {"params.txt", "changes.txt", "plan.txt", "schedule.csv", "versions.txt"}
  assert {path.name for path in tmp_path.iterdir()} <= described


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
