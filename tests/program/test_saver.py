"""When the saver saves, and what becomes of errors in its thread."""

import threading
import types
from typing import Any, cast

import numpy as np
import pytest

from tfpipe import model
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program import saver as saver_lib
from tfpipe.program.checkpoint import Checkpoint
from tfpipe.program.saver import Saver


class FakeRun:
  """A run whose state is one number, the step."""

  def __init__(self, **values):
    self.step = 0
    self.params = types.SimpleNamespace(train=model.TrainParams().Set(**values))
    self.copied: list[int] = []

  def checkpoint(self, score=None):
    self.copied.append(self.step)
    return Checkpoint(self.step, {"w": np.array(self.step)}, "e", "p", score)

  def num_bytes(self):
    return 3 * 2**20


def make(folder, **values):
  run = FakeRun(**values)
  return run, Saver(cast(Any, run), folder)


def steps(folder):
  return [checkpoint_lib.load(path).step for path in checkpoint_lib.paths(folder)]


@pytest.fixture
def gate(monkeypatch):
  """Holds the writing of checkpoints until it is set."""
  opened, save = threading.Event(), checkpoint_lib.save

  def wait_and_save(*arguments):
    assert opened.wait(60)
    return save(*arguments)

  monkeypatch.setattr(checkpoint_lib, "save", wait_and_save)
  return opened


@pytest.fixture
def full(monkeypatch):
  """A disk without room."""

  def fail(file, **arrays):
    file.write(b"half of it")
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "savez", fail)


def test_training_goes_on_while_what_was_copied_is_written(tmp_path, gate, capsys):
  run, saver = make(tmp_path)
  with saver:
    run.step = 1
    saver.save()
    run.step = 2
    saver.check()
    assert steps(tmp_path) == []
    assert capsys.readouterr().out == ""
    gate.set()
  assert steps(tmp_path) == [1]
  assert run.copied == [1]
  assert capsys.readouterr().out == f"saved {tmp_path}/checkpoint-00000001.npz\n"


def test_a_second_copy_is_made_only_when_the_first_is_written(tmp_path, gate):
  run, saver = make(tmp_path)
  with saver:
    run.step = 1
    saver.save()
    run.step = 2
    # Opens the gate when the second save waits, and sees what it had copied by then.
    seen = []
    threading.Timer(0.05, lambda: (seen.extend(run.copied), gate.set())).start()
    saver.save()
    assert seen == [1]
    assert steps(tmp_path)[0] == 1
  assert steps(tmp_path) == [1, 2]


def test_a_step_is_saved_once(tmp_path):
  run, saver = make(tmp_path)
  with saver:
    saver.save()  # nothing was trained yet
    run.step = 3
    saver.save()
    saver.save()
  assert run.copied == [3]


def wait_until_written(saver):
  pending = saver._pending
  assert pending
  pending.exception(60)


@pytest.mark.parametrize("method", ["check", "save"])
def test_what_goes_wrong_in_the_thread_is_raised_at_the_next_step(
  tmp_path, full, method
):
  run, saver = make(tmp_path)
  run.step = 1
  saver.save()
  wait_until_written(saver)
  run.step = 2
  with pytest.raises(OSError, match="step 1 could not be saved: No space left on dev"):
    getattr(saver, method)()
  assert list(tmp_path.iterdir()) == []
  assert run.copied == [1]
  saver.check()  # raised once


def save_step_1(folder, then=lambda: None):
  """Saves within the context, which is left when `then` has run or failed."""
  run, saver = make(folder)
  with saver:
    run.step = 1
    saver.save()
    then()


def test_what_goes_wrong_with_the_last_one_is_raised_at_the_end(tmp_path, full):
  with pytest.raises(OSError, match="step 1 could not be saved: No space left"):
    save_step_1(tmp_path)


def fail():
  raise ZeroDivisionError


def test_an_error_of_training_is_not_hidden_by_one_of_saving(tmp_path, full, capsys):
  with pytest.raises(ZeroDivisionError):
    save_step_1(tmp_path, then=fail)
  message = f"{tmp_path}: step 1 could not be saved: No space left on device\n"
  assert capsys.readouterr().out == message


def test_an_error_of_training_waits_for_what_is_being_written(tmp_path, gate):
  threading.Timer(0.05, gate.set).start()
  with pytest.raises(ZeroDivisionError):
    save_step_1(tmp_path, then=fail)
  assert steps(tmp_path) == [1]


@pytest.mark.parametrize(
  ("minutes", "due"),
  [
    # A step a minute; steps 3 and 6 by the interval of steps.
    (0.0, [3, 6]),
    (2.0, [2, 3, 5, 6]),
    (1.0, [1, 2, 3, 4, 5, 6, 7]),
    (60, [3, 6]),
  ],
)
def test_steps_or_minutes_whatever_comes_first(tmp_path, monkeypatch, minutes, due):
  now = [1000.0]
  monkeypatch.setattr(saver_lib.time, "monotonic", lambda: now[0])
  run, saver = make(tmp_path, save_interval_steps=3, save_interval_minutes=minutes)
  now[0] += 10_000  # not counted: training has not begun
  with saver:
    for run.step in range(1, 8):
      now[0] += 60
      if saver.is_due(run.step):
        saver.save()
  assert run.copied == due


def test_the_best_by_a_metric_is_saved_and_only_the_better(tmp_path, capsys):
  run, saver = make(tmp_path, keep_best="accuracy")
  for run.step, value in enumerate([float("nan"), 0.5, 0.25, 0.5, 0.75], 1):
    saver.save_if_best({"loss": 1.0, "accuracy": value})
  assert run.copied == [2, 5]
  best = checkpoint_lib.load(tmp_path / "best.npz")
  assert (best.step, best.score) == (5, ("accuracy", 0.75))
  path = tmp_path / "best.npz"
  assert capsys.readouterr().out == (
    f"saved {path}: accuracy=0.5 is the best so far\n"
    f"saved {path}: accuracy=0.75 is the best so far\n"
  )


def test_a_run_that_goes_on_remembers_its_best(tmp_path, capsys):
  run, saver = make(tmp_path, keep_best="min:error")
  run.step = 1
  saver.save_if_best({"error": 0.5})
  run, saver = make(tmp_path, keep_best="min:error")
  for run.step, value in enumerate([0.75, 0.5, 0.25], 2):
    saver.save_if_best({"error": value})
  assert run.copied == [4]
  # By another metric there is none yet.
  run, saver = make(tmp_path, keep_best="loss")
  saver.save_if_best({"loss": 9.0})
  assert checkpoint_lib.load(tmp_path / "best.npz").score == ("loss", 9.0)
  (tmp_path / "best.npz").write_bytes(b"PK")
  run, saver = make(tmp_path, keep_best="loss")
  capsys.readouterr()
  saver.save_if_best({"loss": 10.0})
  assert checkpoint_lib.load(tmp_path / "best.npz").score == ("loss", 10.0)
  assert "skipped: " in capsys.readouterr().out


def test_a_better_one_of_an_evaluation_beside_is_kept(tmp_path):
  run, training = make(tmp_path, keep_best="min:error")
  beside, watching = make(tmp_path, keep_best="min:error")
  run.step = 20
  training.save_if_best({"error": 0.6})
  beside.step = 30  # saved, but not evaluated by the training
  watching.save_if_best({"error": 0.5})
  run.step = 40
  training.save_if_best({"error": 0.55})
  best = checkpoint_lib.load(tmp_path / "best.npz")
  assert (best.step, best.score) == (30, ("error", 0.5))
  run.step = 60
  training.save_if_best({"error": 0.25})
  watching.save_if_best({"error": 0.4})
  assert checkpoint_lib.load(tmp_path / "best.npz").score == ("error", 0.25)


def test_no_best_is_saved_unless_asked(tmp_path):
  run, saver = make(tmp_path)
  saver.save_if_best({"loss": 1.0})
  assert run.copied == []


def test_a_disk_without_room_for_a_checkpoint_is_refused(tmp_path, monkeypatch):
  free = 3 * 2**20
  monkeypatch.setattr(
    saver_lib.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free)
  )
  _, saver = make(tmp_path / "new" / "folder")
  saver.check_space()
  free -= 1
  message = (
    r"--logdir=.*/new/folder: 3.0 MiB are free there, and a checkpoint takes 3.0 M"
  )
  with pytest.raises(ValueError, match=message):
    saver.check_space()
  # The next save overwrites what a killed one left.
  (tmp_path / checkpoint_lib.PARTIAL).write_bytes(b"1")
  make(tmp_path)[1].check_space()
