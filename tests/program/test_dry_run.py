"""A dry run does what a first step does, in memory."""

import pathlib
import re
import subprocess
import sys
import types

import pytest

from tests.program import command, tiny, training
from tests.program.training import IMAGE
from tfpipe.program import saver


def contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", ["train", "train_and_eval"])
def test_the_first_step_is_run_and_nothing_is_written(tf, tmp_path, capsys, mode):
  logdir = tmp_path / "new"
  command.run(f"--model={IMAGE}", f"--logdir={logdir}", f"--mode={mode}", "--dry_run")
  dry = capsys.readouterr().out.splitlines()
  assert not list(tmp_path.iterdir())
  assert dry[-1] == "dry run: this step has been tried in memory; nothing was written"
  assert bool([x for x in dry if x.startswith("eval of one batch: loss=")]) == (
    mode == "train_and_eval"
  )
  command.run(f"--model={IMAGE}", f"--logdir={logdir}", "--mode=train")
  (first,) = [
    x for x in capsys.readouterr().out.splitlines() if x.startswith("step=1/")
  ]
  expected = {
    "step=1/6",
    *re.findall(r"(?:accuracy|accuracy_top5|grad_norm)=\S+", first),
  }
  assert expected <= set(dry[-2].split())


def test_a_dry_run_needs_no_folder_and_tries_the_first_step(
  tf, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  command.run(f"--model={IMAGE}", "--mode=train", "--dry_run")
  shown = capsys.readouterr().out
  assert "\nstep=1/6 loss=" in shown
  assert shown.endswith("nothing was written\n")
  assert not list(tmp_path.iterdir())
  for given in ("--logdir=", "--nodry_run"):
    found = command.refusal(f"--model={IMAGE}", "--mode=train", "--dry_run", given)
    assert found == "error: --logdir is missing; --mode=train needs a folder"


def test_a_dry_run_goes_on_from_the_newest_checkpoint(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=4")
  before = contents(tmp_path)
  command.run(f"--model={IMAGE}", f"--logdir={tmp_path}", "--dry_run")
  shown = capsys.readouterr().out
  assert f"restored step 4 from {tmp_path}\n" in shown
  assert "\nstep=5/6 loss=" in shown
  assert contents(tmp_path) == before
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--dry_run")
  command.run(*arguments, "--max_steps=4")
  shown = capsys.readouterr().out
  assert shown.endswith("nothing to train: step 4 is not below max_steps=4\n")


def test_a_dry_run_says_that_the_training_data_has_ended(tf, tmp_path, capsys):
  training.train(tmp_path, IMAGE, "input.repeat=false")
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--dry_run")
  command.run(*arguments, "--set=input.repeat=false")
  shown = capsys.readouterr().out
  assert shown.endswith("nothing to train: the training data ends after step 3\n")


@pytest.mark.parametrize(
  ("name", "overrides", "message"),
  [
    ("tests.program.tiny.BadLoss", (), r"^stopped: .*not finite"),
    (
      "tests.program.tiny.Poisoned",
      ("--set=input.first_bad=0",),
      r"^stopped: step 1: .*; first, in micro-batch 0 of step 1, .* of layer 'block",
    ),
  ],
)
def test_a_step_that_is_not_finite_is_found(tf, tmp_path, name, overrides, message):
  if name.endswith("BadLoss"):
    training.train(tmp_path, name, "train.max_steps=2")
  found = command.refusal(
    f"--model={name}", f"--logdir={tmp_path}", "--dry_run", *overrides
  )
  assert re.search(message, found), found


def test_a_disk_without_space_for_a_checkpoint_is_found(tf, tmp_path, monkeypatch):
  full = types.SimpleNamespace(free=10)
  monkeypatch.setattr(saver.shutil, "disk_usage", lambda path: full)
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}", "--dry_run")
  assert "10 B are free there, and a checkpoint takes" in found
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("body", "message"),
  [
    (
      lambda tf, theta: tf.matmul(theta.w, theta.w),
      "ValueError: Dimensions must be equal",
    ),
    (
      lambda tf, theta: theta.weights,
      "AttributeError: NestedMap has no key 'weights'; ",
    ),
  ],
)
def test_a_mistake_in_fprop_is_said_with_its_layer_and_its_line(
  tf, tmp_path, monkeypatch, capsys, body, message
):
  monkeypatch.setattr(tiny.Block, "FProp", lambda self, theta, *_: body(tf, theta))
  with pytest.raises(SystemExit) as ended:
    command.run(f"--model={IMAGE}", f"--logdir={tmp_path}/new", "--dry_run")
  assert ended.value.code == 1
  place = f"test_dry_run.py:{body.__code__.co_firstlineno}"
  what = "building the evaluation: layer 'block_0' (stage 0 on /device:CPU:0)"
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: {what}, {place}: {message}")


FAULTY = "tools.fault_cases.Small"
ROW = "--set=task.fault_row=4"
STEP_1 = ("--set=task.fault_step=1", "--set=input.fault_step=1")


def test_a_bad_number_is_named_by_layer_stage_and_micro_batch(tf, tmp_path):
  found = command.refusal(
    f"--model={FAULTY}",
    f"--logdir={tmp_path}",
    "--dry_run",
    "--set=task.fault=nan",
    ROW,
    *STEP_1,
  )
  assert found == (
    "stopped: step 1: the loss of micro-batch 2 is not finite; first, in micro-batch 2 "
    "of step 1, the output of layer 'faulty' (stage 0 on /device:CPU:0) is not finite"
  )


@pytest.mark.parametrize(
  ("fault", "code", "message"),
  [
    ("task.fault=raise", 70, r"failed: step 1: layer 'faulty' .* micro-batch 2: "),
    ("task.fault=build", 1, r"error: building the step: layer 'faulty' "),
    ("input.fault=raise", 70, r"failed: step 1: the input, FaultyInput, has failed: "),
  ],
)
def test_what_fails_is_named_and_has_the_code_of_a_training(
  tf, tmp_path, capsys, fault, code, message
):
  with pytest.raises(SystemExit) as ended:
    command.run(
      f"--model={FAULTY}",
      f"--logdir={tmp_path}",
      "--mode=train",
      "--dry_run",
      f"--set={fault}",
      ROW,
      *STEP_1,
    )
  assert ended.value.code == code
  assert re.match(message, capsys.readouterr().err.splitlines()[-1])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("fault", "message"),
  [
    ("input.fault=block", r"hung: step 1 waits for the input, FaultyInput, for more"),
    ("task.fault=spin", r"hung: step 1 runs for more .*: device 0 does not end F "),
  ],
)
def test_what_hangs_is_ended_and_named(tmp_path, fault, message):
  ended = subprocess.run(
    [
      *(sys.executable, "-m", "tfpipe.trainer", f"--model={FAULTY}", "--dry_run"),
      *("--mode=train", f"--logdir={tmp_path}", f"--set={fault}", ROW, *STEP_1),
      "--set=train.step_timeout_secs=5",
    ],
    capture_output=True,
    text=True,
    cwd=pathlib.Path(__file__).parents[2],
    check=False,
  )
  assert ended.returncode == 75
  assert re.match(message, ended.stderr.splitlines()[-1]), ended.stderr
