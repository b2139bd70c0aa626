"""A blocked input: a signal to stop ends the wait, and what is done is saved."""

import os
import re
import signal
import subprocess
import sys
import threading
import types

import pytest

from tests.program import training
from tests.program.test_stop import NUMBERS, ROOT, start, wait_for
from tests.program.training import IMAGE
from tfpipe.program import export, fetch
from tfpipe.program.batches import first_planned
from tfpipe.program.failure import StepError
from tfpipe.program.fetch import Fetcher, GivenUp
from tfpipe.program.stop import StopSignal
from tfpipe.program.train import Trainer
from tfpipe.program.watchdog import Watchdog


@pytest.fixture(autouse=True)
def interrupts():
  """Whoever runs the tests in the background lets them ignore SIGINT."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


@pytest.fixture
def never():
  """Gives what a blocked input waits for, until the test ends."""
  event = threading.Event()
  yield event
  event.set()


def test_items_errors_and_the_end_are_those_of_the_iterator():
  def items():
    yield 1
    yield None
    raise OSError("the disk is gone")

  with StopSignal() as stop:
    with Fetcher(items(), stop) as fetched:
      assert next(fetched) == 1
      assert next(fetched) is None
      with pytest.raises(OSError, match=r"^the disk is gone$"):
        next(fetched)
    with Fetcher(iter(()), stop) as fetched:
      assert list(fetched) == []


def test_what_comes_soon_after_a_signal_is_given(monkeypatch):
  monkeypatch.setattr(fetch, "_PATIENCE_SECS", 10**6)
  with StopSignal() as stop, Fetcher(iter("ab"), stop) as fetched:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.name == "SIGTERM"
    assert list(fetched) == ["a", "b"]


def test_a_signal_before_the_wait_ends_it_as_well(never, monkeypatch):
  monkeypatch.setattr(fetch, "_PATIENCE_SECS", 0.01)
  with StopSignal() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    with Fetcher(iter(never.wait, True), stop) as fetched, pytest.raises(GivenUp):
      next(fetched)


def test_one_item_is_fetched_at_a_time_and_none_before_it_is_wanted():
  taken = []

  def items():
    for number in range(3):
      taken.append(number)
      yield number

  with StopSignal() as stop, Fetcher(items(), stop) as fetched:
    assert taken == []
    assert next(fetched) == 0
    assert taken == [0]
    thread = fetched._thread
  thread.join()
  assert taken == [0]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_ends_the_wait_for_a_blocked_input_and_saves_what_is_done(
  tf, tmp_path, capsys, monkeypatch, never, number
):
  run = training.make_run(IMAGE)
  dataset = run.input.dataset

  def batches(start_step):
    yield from dataset().take(1)
    os.kill(os.getpid(), number)
    never.wait()

  monkeypatch.setattr(run.input, "dataset", batches)
  Trainer(run, tmp_path).train()
  assert training.newest(tmp_path).step == 1
  shown = capsys.readouterr().out.splitlines()
  assert shown[-2:] == [
    f"saved {tmp_path}/checkpoint-00000001.npz",
    f"stopped by {number.name} after step 1, waiting for the input, "
    "SyntheticImageInput; the same command continues",
  ]


def test_a_signal_ends_an_evaluation_whose_input_is_blocked(
  tf, tmp_path, capsys, monkeypatch, never
):
  run = training.make_run(IMAGE)
  assert run.eval_input
  dataset = run.eval_input.dataset

  def batches():
    yield from dataset().take(1)
    os.kill(os.getpid(), signal.SIGTERM)
    never.wait()

  monkeypatch.setattr(run.eval_input, "dataset", batches)
  Trainer(run, tmp_path).train()
  assert capsys.readouterr().out.splitlines()[-1] == (
    "stopped by SIGTERM after step 6; the same command continues"
  )
  assert training.metrics(tmp_path, "eval") == []


def test_a_program_whose_input_is_blocked_ends(tmp_path):
  blocks = ("--set=input.fault=block", "--set=input.fault_step=3", "--mode=train")
  with start(
    f"--logdir={tmp_path}", *blocks, name="tools.fault_cases.Small"
  ) as process:
    wait_for(process, "^step=2/60 ")
    process.terminate()
    assert process.stdout
    rest = process.stdout.read().splitlines()
  assert process.returncode == 0
  assert re.fullmatch(r"stopped by SIGTERM after step 2\b.*; the same .*", rest[-1])
  assert training.newest(tmp_path).step == 2


def test_a_training_does_not_wait_for_what_its_input_reads_ahead(tmp_path):
  blocks = ("--set=input.fault=block", "--set=input.fault_step=4", "--mode=train")
  arguments = (f"--logdir={tmp_path}", "--max_steps=3", *blocks)
  with start(*arguments, name="tools.fault_cases.Small") as process:
    assert process.stdout
    shown = process.stdout.read().splitlines()
  assert process.returncode == 0
  assert shown[-1] == f"saved {tmp_path}/checkpoint-00000003.npz"


def test_an_input_that_fails_or_is_blocked_is_named_in_every_mode(
  tf, tmp_path, monkeypatch, never
):
  run = training.make_run(IMAGE, "train.step_timeout_secs=1000")
  assert run.eval_input

  def fails():
    raise OSError("the disk is gone")
    yield

  broken = types.SimpleNamespace(take=lambda number: fails())
  monkeypatch.setattr(run.eval_input, "dataset", lambda: broken)
  message = r"^exporting step 0: the input, .*, has failed: OSError: the disk is gone$"
  with pytest.raises(StepError, match=message):
    export.export(run, tmp_path)
  assert not list(tmp_path.iterdir())

  blocked = types.SimpleNamespace(take=lambda number: iter(never.wait, True))
  monkeypatch.setattr(run.eval_input, "dataset", lambda: blocked)
  ended = []

  def end(hung):
    ended.append(hung)
    never.set()

  with Watchdog(0.01, end) as watchdog, pytest.raises(ValueError, match="gives no"):
    first_planned(run.eval_input, "a test", watchdog)
  assert ended == [
    "a test waits for the input, SyntheticImageInput, for more than "
    "train.step_timeout_secs=0.01"
  ]


def test_profiling_a_blocked_input_ends_at_its_limit(tmp_path):
  command = [
    *(sys.executable, "-m", "tools.profile_layers"),
    *("--model=tools.fault_cases.Small", f"--output={tmp_path}/times.json"),
    *("--set=input.fault=block", "--set=input.fault_step=1"),
  ]
  limit = "--set=train.step_timeout_secs=0.1"
  ended = subprocess.run(
    [*command, limit], capture_output=True, text=True, cwd=ROOT, check=False
  )
  assert ended.returncode == 75
  assert ended.stderr.startswith("hung: profiling waits for the input, ")
