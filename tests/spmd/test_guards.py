"""What goes wrong in a program on all devices gets a place, or is said to have none."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.program import training
from tests.program.training import IMAGE
from tfpipe.program import guard as guard_lib
from tfpipe.program.restarts import FAILED

SPMD = "pipeline.backend=spmd"
SMALL = "tools.fault_cases.Small"
FAULT = ("task.fault_row=4", "task.fault_step=3")
PLACE = r"layer 'faulty' \(stage 2 on /device:CPU:2\)"
CUT = ("pipeline.num_partitions=4", "pipeline.lengths=(1,1,1,6)")


@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_layer_with_a_bad_number_is_named(tf, tmp_path, steps):
  message = (
    "^step 3: the loss of micro-batch 2 is not finite; first, in micro-batch 2 of step "
    f"3, the output of {PLACE} is not finite$"
  )
  calls = (f"train.steps_per_call={steps}", "train.log_interval_steps=2")
  calls += ("train.save_interval_steps=6",)
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, SPMD, "task.fault=nan", *FAULT, *CUT, *calls)


def test_of_two_pipelines_the_micro_batch_is_told_among_all(tf, tmp_path):
  # Of four micro-batches of 2 rows, the second pipeline's first begins with row 4.
  message = (
    "^step 3: the loss of micro-batch 2 is not finite; first, in micro-batch 2 of step "
    r"3, the output of layer 'faulty' \(stage 0 on /device:CPU:0\) is not finite$"
  )
  sizes = ("pipeline.num_partitions=2", "pipeline.lengths=(4,5)")
  sizes += ("pipeline.num_replicas=2",)
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, SPMD, "task.fault=nan", *FAULT, *sizes)


def test_of_a_skipped_step_within_a_call_no_layer_is_blamed(tf, tmp_path, capsys):
  calls = ("train.steps_per_call=2", "train.log_interval_steps=2")
  calls += ("train.save_interval_steps=6", "train.max_steps=6")
  skips = ("task.fault=nan", "task.learner.nonfinite=skip", *FAULT)
  training.train(tmp_path, SMALL, SPMD, *skips, *CUT, *calls)
  shown = capsys.readouterr().out
  assert "\nstep 4: update skipped, 1 in a row\n" in shown
  assert "\nwhere it comes from is not known: later steps of its call have" in shown
  assert training.newest(tmp_path).step == 6


def test_a_layer_that_fails_ends_the_program(tmp_path):
  # Within the tests' own process, what other devices wait for would be left behind.
  settings = (SPMD, "task.fault=raise", *FAULT, *CUT)
  ended = subprocess.run(
    [
      *(sys.executable, "-m", "tfpipe.trainer", f"--model={SMALL}"),
      *(f"--logdir={tmp_path}", *(f"--set={setting}" for setting in settings)),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == FAILED
  message = rf"^failed: step 3: {PLACE}, forward of micro-batch 2: "
  assert re.match(message, ended.stderr), ended.stderr


def test_a_failing_layer_is_looked_for_on_one_device_alone(tf):
  run = training.make_run(IMAGE, SPMD, "pipeline.num_partitions=2")
  assert len({variable.device for variable in run.pipeline.weights.values()}) == 2
  probe = run.probe(next(iter(run.batches())), one_device=True)
  # What would still be on its way from another is cancelled by the error, which may
  # then tell of nothing else.
  devices = {tensor.device for tensor in probe._function.captured_inputs}
  assert [device.rpartition("/")[2] for device in devices] == ["device:CPU:0"]


def test_of_a_step_that_hangs_no_action_is_known(tf):
  run = training.make_run(IMAGE, SPMD, "train.step_timeout_secs=100")
  assert run.marks is None
  where = guard_lib.Guard(run)._where()
  assert where == "one program for all devices does not tell which action it is at"
