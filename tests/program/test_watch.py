"""Evaluation beside a running training."""

import contextlib

import numpy as np
import pytest

from tests.program import command, training
from tests.program.training import IMAGE
from tfpipe.program import checkpoint, run_folder, watch
from tfpipe.program.lock import is_held, lock
from tfpipe.program.train import Trainer, restore_newest


class Training:
  """Stands for the other process: goes on each time that the watch waits."""

  def __init__(self, folder, *stops):
    self._folder = folder
    self._stops = list(stops)
    self.waits = 0

  def __call__(self):
    self.waits += 1
    stop = self._stops.pop(0)
    if callable(stop):
      stop()
    elif stop:
      training.train(self._folder, IMAGE, f"train.max_steps={stop}")
      # `train` is a function of the tests; the program writes what it is asked for.
      params = training.make_run(IMAGE, "train.max_steps=6").params
      (self._folder / "params.txt").write_text(params.ToText())


def watched(folder, wait, *overrides):
  run = training.make_run(IMAGE, *overrides)
  watch.watch(run, Trainer(run, folder, trains=False), folder, wait)
  return run


def test_each_newest_checkpoint_is_evaluated_until_the_training_s_last_step(
  tf, tmp_path, capsys
):
  folder = tmp_path / "run"
  # Not even the folder is there; then nothing new; then two checkpoints at once.
  other = Training(folder, 0, 2, 0, 6)
  watched(folder, other, "train.max_steps=99")
  assert other.waits == 4
  evaluated = training.metrics(folder, "eval")
  assert [record["step"] for record in evaluated] == [2, 6]
  shown = capsys.readouterr().out
  assert shown.startswith(f"watching {folder}\n")
  assert shown.endswith("\nevaluated the last step of the training, 6\n")
  assert "max_steps=99" not in shown
  fresh = training.make_run(IMAGE)
  restore_newest(fresh, folder)
  trainer = Trainer(fresh, folder, trains=False)
  trainer.evaluate()
  assert training.metrics(folder, "eval")[-1] == evaluated[-1]


def test_a_checkpoint_that_is_removed_while_it_is_read_is_followed_by_the_next(
  tf, tmp_path, monkeypatch
):
  training.train(tmp_path, IMAGE, "train.max_steps=2")
  load = checkpoint.load

  def gone(path):
    if path.name.endswith("2.npz"):
      path.unlink()
      training.train(tmp_path, IMAGE, "train.max_steps=1")
      path.unlink(missing_ok=True)
    return load(path)

  (tmp_path / "params.txt").write_text("train.max_steps : 1\n")
  monkeypatch.setattr(checkpoint, "load", gone)
  other = Training(tmp_path, 0)
  watched(tmp_path, other)
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [1]


def test_a_damaged_newest_one_is_skipped_and_the_one_before_is_evaluated_once(
  tf, tmp_path
):
  training.train(tmp_path, IMAGE, "train.max_steps=2")

  def damage():
    (tmp_path / "checkpoint-00000003.npz").write_bytes(b"")

  def last():
    (tmp_path / "checkpoint-00000003.npz").unlink()
    training.train(tmp_path, IMAGE, "train.max_steps=4")
    (tmp_path / "params.txt").write_text("train.max_steps : 4\n")

  watched(tmp_path, Training(tmp_path, damage, 0, last))
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [2, 4]


def test_damaged_checkpoints_end_the_watch(tf, tmp_path):
  (tmp_path / "checkpoint-00000002.npz").write_bytes(b"")
  with pytest.raises(ValueError, match=r"no complete checkpoint in "):
    watched(tmp_path, Training(tmp_path))


def test_another_experiment_s_training_is_refused(tf, tmp_path):
  foreign = checkpoint.Checkpoint(1, {"weights/w": np.ones(3)}, training.TEXT, "")
  checkpoint.save(tmp_path, foreign, keep=1)
  found = command.refusal(
    f"--model={IMAGE}", f"--logdir={tmp_path}", "--mode=eval", "--watch"
  )
  assert f"the checkpoint is of experiment {training.TEXT}" in found


def test_a_finished_training_is_evaluated_once(tf, tmp_path, capsys):
  command.run(
    f"--model={IMAGE}", f"--logdir={tmp_path}", "--max_steps=1", "--mode=train"
  )
  command.run(f"--model={IMAGE}", f"--logdir={tmp_path}", "--mode=eval", "--watch")
  assert len(training.metrics(tmp_path, "eval")) == 1
  assert capsys.readouterr().out.endswith(
    "evaluated the last step of the training, 1\n"
  )


@pytest.mark.parametrize("text", [None, "", "train.max_ste", "train.max_steps : "])
def test_the_last_step_is_not_known_while_it_is_being_written(tmp_path, text):
  if text is not None:
    (tmp_path / "params.txt").write_text(text)
  assert watch.max_steps(tmp_path) is None
  (tmp_path / "params.txt").write_text("name : 'x'\ntrain.max_steps : 7\n")
  assert watch.max_steps(tmp_path) == 7


def test_eval_shows_no_change_of_what_concerns_training_alone(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=1", "task.learner.ema_ramp=true")
  capsys.readouterr()
  command.run(f"--model={IMAGE}", f"--logdir={tmp_path}", "--mode=eval")
  shown = capsys.readouterr().out
  assert "changed since then:\n  - task.learner.ema_ramp : True\n" in shown
  assert "train.max_steps" not in shown


def test_a_training_that_was_stopped_ends_the_watch_after_its_last_checkpoint(
  tf, tmp_path, capsys
):
  def stopped():
    training.train(tmp_path, IMAGE, "train.max_steps=3")
    run_folder.end(tmp_path, "stopped by SIGTERM after step 3")

  other = Training(tmp_path, 2, stopped)
  watched(tmp_path, other)
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [2, 3]
  assert capsys.readouterr().out.endswith(
    "the training has ended before its last step: stopped by SIGTERM after step 3\n"
  )


@pytest.mark.parametrize(
  ("name", "overrides", "why"),
  [
    (IMAGE, ("input.repeat=false",), "the training data ended after step 3"),
    ("tests.program.tiny.Poisoned", (), "stopped: step 3: "),
  ],
)
def test_a_training_says_that_it_has_ended_before_its_last_step(
  tf, tmp_path, name, overrides, why
):
  run_folder.end(tmp_path, "stopped by SIGTERM after step 1")
  with contextlib.suppress(FloatingPointError):
    training.train(tmp_path, name, *overrides)
  assert run_folder.ended(tmp_path).why.startswith(why)
  training.train(tmp_path / "whole", IMAGE)
  assert run_folder.ended(tmp_path / "whole").why == ""


def test_a_training_that_is_gone_is_waited_for_and_said_once_to_be_so(
  tf, tmp_path, capsys
):
  with contextlib.ExitStack() as held:
    # An end that a training in the folder has not taken back yet does not count.
    run_folder.end(tmp_path, "stopped by SIGTERM after step 1")

    def gone():
      run_folder.begin(tmp_path)
      held.close()

    def back():
      held.enter_context(lock(tmp_path))

    held.enter_context(lock(tmp_path))
    watched(tmp_path, Training(tmp_path, 2, gone, 0, back, gone, 6))
  shown = capsys.readouterr().out
  waits = f"no process trains in {tmp_path}: waiting for one; SIGINT (Ctrl-C) ends this"
  lines = [line for line in shown.splitlines() if "waiting" in line or "eval" in line]
  assert [line.split(" loss")[0] for line in lines] == [
    "eval step=2",
    waits,
    waits,
    "eval step=6",
    "evaluated the last step of the training, 6",
  ]


def test_a_training_that_had_ended_before_the_watch_may_go_on(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=1")
  end = "stopped by SIGTERM after step 1"
  run_folder.end(tmp_path, end)
  earlier = run_folder.ended(tmp_path)

  def again():
    run_folder.begin(tmp_path)
    training.train(tmp_path, IMAGE, "train.max_steps=2")
    run_folder.end(tmp_path, end)  # in the same words, at another time
    assert run_folder.ended(tmp_path).why == earlier.why

  watched(tmp_path, Training(tmp_path, 0, again))
  shown = capsys.readouterr().out
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [1, 2]
  waits = f"no process trains in {tmp_path}, where one has ended ({end}): waiting for"
  assert shown.count(waits) == 1
  assert shown.endswith(f"the training has ended before its last step: {end}\n")


def test_a_training_that_goes_on_beyond_its_last_step_is_watched(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=1")
  (tmp_path / "params.txt").write_text("train.max_steps : 1\n")
  with contextlib.ExitStack() as held:
    # It has begun, and what it will do is not written yet.
    held.enter_context(lock(tmp_path))

    def goes_on():
      training.train(tmp_path, IMAGE, "train.max_steps=2")
      (tmp_path / "params.txt").write_text("train.max_steps : 2\n")

    watched(tmp_path, Training(tmp_path, 0, goes_on, held.close))
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [1, 2]
  assert capsys.readouterr().out.endswith(
    "evaluated the last step of the training, 2\n"
  )


def test_a_step_that_has_been_evaluated_is_not_evaluated_again(tf, tmp_path, capsys):
  where = (f"--model={IMAGE}", f"--logdir={tmp_path}")
  command.run(*where, "--max_steps=2")
  command.run(*where, "--mode=eval", "--watch")
  assert len(training.metrics(tmp_path, "eval")) == 1
  assert capsys.readouterr().out.endswith(
    "step 2 has been evaluated before\nevaluated the last step of the training, 2\n"
  )
  command.run(*where, "--mode=eval")
  assert len(training.metrics(tmp_path, "eval")) == 2


def test_the_last_step_ends_the_watch_though_it_is_known_only_later(tf, tmp_path):
  training.train(tmp_path, IMAGE, "train.max_steps=2")

  def known():
    (tmp_path / "params.txt").write_text("train.max_steps : 2\n")

  watched(tmp_path, Training(tmp_path, known))
  assert [r["step"] for r in training.metrics(tmp_path, "eval")] == [2]


def test_a_folder_is_held_while_a_process_trains_there(tmp_path):
  assert not is_held(tmp_path / "no")
  assert not is_held(tmp_path)
  with lock(tmp_path):
    assert is_held(tmp_path)
    with (
      pytest.raises(ValueError, match="another process is training there"),
      lock(tmp_path),
    ):
      pass
  assert not is_held(tmp_path)
