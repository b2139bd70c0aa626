"""Evaluations that fail or hang: named, as steps are."""

import pathlib
import re
import subprocess
import sys

import pytest

from tests.program import command, training
from tfpipe.program.failure import BuildError, StepError

NAME = "tests.program.tiny.FaultyEvaluation"
ONE = "train.max_steps=1"


@pytest.mark.parametrize("num_partitions", [1, 2])
def test_a_layer_that_fails_in_an_evaluation_is_named(tf, tmp_path, num_partitions):
  stage = num_partitions - 1
  message = (
    rf"^evaluating step 1, batch 1: layer 'loss' \(stage {stage} on /device:CPU:{stage}"
    r"\), forward of micro-batch [01]: InvalidArgumentError: indices = 4 is not in "
  )
  cut = f"pipeline.num_partitions={num_partitions}"
  with pytest.raises(StepError, match=message):
    training.train(tmp_path, NAME, ONE, cut, evaluates=True)
  assert training.newest(tmp_path).step == 1
  with pytest.raises(SystemExit) as ended:
    command.run(f"--model={NAME}", f"--logdir={tmp_path}", "--mode=eval")
  assert ended.value.code == 70


def test_a_layer_whose_evaluation_cannot_be_built_is_named(tf, tmp_path):
  message = (
    r"^building the evaluation: layer 'loss' \(stage 1 on /device:CPU:1\), "
    r"tiny\.py:\d+: ZeroDivisionError: a mistake in FProp$"
  )
  with pytest.raises(BuildError, match=message):
    training.train(tmp_path, NAME, ONE, "task.loss.fault=build", evaluates=True)


def test_a_dry_run_finds_what_an_evaluation_would_meet(tf, tmp_path, capsys):
  with pytest.raises(SystemExit) as ended:
    command.run(f"--model={NAME}", f"--logdir={tmp_path}", "--dry_run")
  assert ended.value.code == 70
  shown = capsys.readouterr().err.splitlines()
  assert re.match(r"failed: evaluating one batch: layer 'loss' \(stage 1 ", shown[-1])


def test_an_evaluation_s_input_that_fails_is_named(tf, tmp_path, monkeypatch):
  run = training.make_run(training.IMAGE, ONE)
  source = type(run.input)
  dataset = source.dataset

  def batches(self, start_step=0):
    yield from dataset(self, start_step).take(1)
    if self.params.split == "test":
      raise RuntimeError("the disk is gone")

  monkeypatch.setattr(source, "dataset", batches)
  message = (
    "^evaluating step 1, batch 2: the input, SyntheticImageInput, has failed: "
    "RuntimeError: the disk is gone$"
  )
  with pytest.raises(StepError, match=message):
    training.train(tmp_path, training.IMAGE, ONE, evaluates=True)


def test_an_evaluation_that_hangs_is_ended_and_named(tmp_path):
  limit = "--set=train.step_timeout_secs=10"
  arguments = (f"--model={NAME}", f"--logdir={tmp_path}", "--max_steps=1", limit)
  ended = subprocess.run(
    [sys.executable, "-m", "tfpipe.trainer", *arguments, "--set=task.loss.fault=spin"],
    capture_output=True,
    text=True,
    cwd=pathlib.Path(__file__).parents[2],
    check=False,
  )
  assert ended.returncode == 75
  hung = "hung: evaluating step 1, batch 1 runs for more than train.step_timeout_secs"
  line = ended.stderr.splitlines()[-1]
  assert line.startswith(hung)
  # The loss is the last layer, on the second of two devices.
  place = (
    r": device 1 does not end F \(forward of stage 1, micro-batch 0\): layer.*'loss'"
  )
  assert re.search(place + " on /device:CPU:1", line), line


def test_each_device_counts_the_forwards_of_evaluations(tf):
  run = training.make_run(
    training.IMAGE,
    "train.step_timeout_secs=1000",
    "pipeline.num_partitions=3",
    "pipeline.num_micro_batches=2",
  )
  assert run.eval_input is not None
  assert run.eval_marks is not None
  function = run.eval_function()
  plain = training.make_run(training.IMAGE, "pipeline.num_partitions=3")
  batch = next(iter(run.eval_input.dataset()))
  for number in (1, 2):
    found = function(batch)
    assert run.eval_marks.read() == [2 * number] * 3
  assert run.marks is not None
  assert run.marks.read() == [0] * 3
  assert {name: float(v) for name, (v, _) in found.items()} == {
    name: float(v) for name, (v, _) in plain.eval_function()(batch).items()
  }
