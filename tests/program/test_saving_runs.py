"""Saving as the trainer does it: faults survived, the best kept, files equal."""

import dataclasses
import shutil

import numpy as np
import pytest

from tests.program import command, training
from tests.program.training import IMAGE
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.metrics_file import MetricsFile

OFTEN = ("train.save_interval_steps=1", "train.keep_checkpoints=9")
EVALUATES = ("train.eval_interval_steps=1", "train.keep_best=loss")


@pytest.fixture(scope="module")
def whole(tf, tmp_path_factory):
  """Gives the folder of a run that evaluates and saves after every step."""
  folder = tmp_path_factory.mktemp("whole")
  training.train(folder, IMAGE, *OFTEN, *EVALUATES, evaluates=True)
  return folder


def test_the_best_is_the_checkpoint_of_the_best_evaluation(whole):
  records = training.metrics(whole, "eval")
  assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
  least = min(records, key=lambda record: record["loss"])
  best = checkpoint_lib.load(whole / "best.npz")
  assert best.score == ("loss", least["loss"])
  of_step = checkpoint_lib.load(whole / f"checkpoint-{least['step']:08d}.npz")
  assert training.differences(best, of_step) == []


@pytest.mark.parametrize("evaluated", [2, 1])
def test_a_killed_run_ends_with_the_very_files_of_one_that_was_not(
  whole, tmp_path, evaluated
):
  """Killed in step 4, before it saved step 3; or in the evaluation of step 2."""
  folder = tmp_path / "killed"
  folder.mkdir()
  for name in ("checkpoint-00000001.npz", "checkpoint-00000002.npz"):
    shutil.copy(whole / name, folder)
  lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
  if evaluated == 1:
    lines = [line for line in lines if '"kind": "eval", "step": 2,' not in line]
  (folder / "metrics.jsonl").write_text("".join(lines))
  losses = [record["loss"] for record in training.metrics(whole, "eval")[:evaluated]]
  of_best = losses.index(min(losses)) + 1
  best = checkpoint_lib.load(folder / f"checkpoint-{of_best:08d}.npz")
  score = ("loss", losses[of_best - 1])
  checkpoint_lib.save_best(folder, dataclasses.replace(best, score=score))
  training.train(folder, IMAGE, *OFTEN, *EVALUATES, evaluates=True)
  for path in whole.glob("*.npz"):
    assert (folder / path.name).read_bytes() == path.read_bytes()
  assert training.metrics(folder, "eval") == training.metrics(whole, "eval")


def test_a_full_disk_ends_the_run_in_one_line_and_the_same_command_continues(
  whole, tmp_path, monkeypatch
):
  savez, folder = np.savez, tmp_path / "run"

  def full_at_step_3(file, **arrays):
    savez(file, **arrays)
    if arrays["step"] == 3:
      raise OSError(28, "No space left on device")

  arguments = (f"--model={IMAGE}", f"--logdir={folder}", "--mode=train")
  arguments += tuple(f"--set={override}" for override in OFTEN)
  with monkeypatch.context() as patch:
    patch.setattr(np, "savez", full_at_step_3)
    assert command.refusal(*arguments) == (
      f"error: {folder}: step 3 could not be saved: No space left on device; remove "
      "what is not needed; what was saved before is whole"
    )
  names = sorted(path.name for path in folder.iterdir())
  saved = [name for name in names if name.startswith("checkpoint-")]
  assert saved == ["checkpoint-00000001.npz", "checkpoint-00000002.npz"]
  assert not any("partial" in name for name in names)
  command.run(*arguments)
  steps = [record["step"] for record in training.metrics(folder, "train")]
  assert steps == [1, 2, 3, 4, 5, 6]
  assert training.differences(training.newest(folder), training.newest(whole)) == []


def test_a_run_saves_by_the_clock_as_well(whole, tmp_path):
  # Every step takes longer than 60 ns.
  overrides = ("train.save_interval_minutes=1e-9", "train.save_interval_steps=1000")
  training.train(tmp_path, IMAGE, *overrides, "train.keep_checkpoints=9")
  names = [path.name for path in checkpoint_lib.paths(tmp_path)]
  assert names == [path.name for path in checkpoint_lib.paths(whole)]
  assert len(names) == 6


def test_what_was_copied_to_the_host_does_not_change_with_the_run(tf):
  run = training.make_run(IMAGE)
  copied = run.checkpoint()
  before = {name: array.copy() for name, array in copied.arrays.items()}
  for variable in run.state().values():
    variable.assign_add(tf.ones_like(variable))
  for name, array in before.items():
    assert copied.arrays[name].tobytes() == array.tobytes()
  assert run.num_bytes() == sum(array.nbytes for array in before.values())


def test_a_disk_that_is_full_for_the_metrics_ends_the_run_in_one_line(
  tf, tmp_path, monkeypatch
):
  write = MetricsFile.write

  def full_at_step_3(self, kind, step, values):
    if step == 3:
      raise OSError(28, "No space left on device")
    write(self, kind, step, values)

  monkeypatch.setattr(MetricsFile, "write", full_at_step_3)
  assert command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}") == (
    f"error: {tmp_path}: No space left on device; remove what is not needed; what was "
    "saved before is whole"
  )
  assert training.newest(tmp_path).step == 2
