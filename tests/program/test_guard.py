"""Errors and bad numbers are named by layer, stage, device and micro-batch."""

import re

import pytest

from tests.program import command, tiny, training
from tfpipe.program.failure import BuildError, StepError, short
from tfpipe.program.guard import Guard
from tfpipe.program.places import Places
from tfpipe.program.train import Trainer, restore_newest

SMALL = "tools.fault_cases.Small"
POISONED = "tests.program.tiny.Poisoned"
# Layer 'faulty' is the third of nine; micro-batch 2 of four starts at row 4.
NAN = ("task.fault=nan", "task.fault_row=4", "task.fault_step=3")
ONE_STEP = "task.learner.accumulate_steps=1"
SKIP = "task.learner.nonfinite=skip"


def cut(num_partitions, *lengths, schedule="gpipe"):
  return (
    f"pipeline.num_partitions={num_partitions}",
    f"pipeline.lengths={lengths}",
    f"pipeline.schedule={schedule}",
  )


def faulty(stage, device=None):
  on = f"/device:CPU:{stage if device is None else device}"
  return re.escape(f"layer 'faulty' (stage {stage} on {on})")


@pytest.mark.parametrize(
  ("layout", "place"),
  [
    (cut(1), faulty(0)),
    (cut(4, 1, 1, 1, 6, schedule="1f1b"), faulty(2)),
    (cut(2, 1, 1, 1, 6, schedule="zb_v"), faulty(2, 1)),
  ],
)
def test_the_first_layer_with_a_bad_number_is_named_in_every_layout(
  tf, tmp_path, layout, place
):
  message = (
    "^step 3: the loss of micro-batch 2 is not finite; first, in micro-batch 2 of step "
    f"3, the output of {place} is not finite$"
  )
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, *NAN, *layout)


@pytest.mark.parametrize(
  ("overrides", "step"),
  # With two steps for an update, step 3 is the first of the second one.
  [((), 4), ((ONE_STEP, "pipeline.remat=none"), 3)],
)
def test_a_gradient_is_traced_to_its_layer_and_to_the_step_it_comes_from(
  tf, tmp_path, overrides, step
):
  faults = ("task.fault=gradient", *NAN[1:])
  message = (
    f"^step {step}: update not applied: the gradients of 3 weights are not finite: "
    "conv/w, norm/beta, norm/gamma; first, in micro-batch 2 of step 3, the gradient of "
    f"{faulty(0)} is not finite$"
  )
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, *faults, *overrides)


def test_a_step_before_the_restart_is_not_blamed_on_another(tf, tmp_path):
  faults = ("task.fault=gradient", *NAN[1:])
  training.train(tmp_path, SMALL, *faults, "train.max_steps=3")
  message = (
    "^step 4: update not applied.*; each micro-batch alone is finite in every layer: a "
    "step before the run was continued gave it, or a sum is too large$"
  )
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, *faults)


def test_an_input_that_is_not_finite_is_named(tf, tmp_path):
  message = (
    r"; first, in micro-batch 0 of step 3, the output of layer 'block_0' \(stage 0 on "
    r"/device:CPU:0\) is not finite; nor is the input's image$"
  )
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, POISONED)


def test_weights_that_are_not_finite_are_named(tf, tmp_path):
  run = training.make_run(SMALL)
  weight = run.pipeline.weights["logits/w"]
  weight.assign(weight * float("inf"))
  message = "; first, in micro-batch 0 of step 1, the weights of layer 'logits' .* not"
  with pytest.raises(FloatingPointError, match=message):
    Trainer(run, tmp_path, evaluates=False).train()


def test_of_skipped_updates_the_first_in_a_row_is_explained(tf, tmp_path, capsys):
  overrides = (SKIP, "input.num_bad=16", "train.max_steps=6")
  training.train(tmp_path, POISONED, *overrides)
  shown = capsys.readouterr().out
  found = re.findall(r"^(step \d): .*: update skipped, (\d) in a row$", shown, re.M)
  assert found == [("step 3", "1"), ("step 4", "2"), ("step 5", "3")]
  assert len(re.findall(r"^first, in micro-batch 0 of step 3, ", shown, re.M)) == 1
  assert shown.count("first, in") == 1


@pytest.mark.parametrize("layout", [cut(1), cut(2, 2, 7)])
def test_a_layer_that_fails_is_named(tf, tmp_path, layout):
  faults = ("task.fault=raise", *NAN[1:])
  stage = 1 if layout == cut(2, 2, 7) else 0
  message = (
    f"^step 3: {faulty(stage)}, forward of micro-batch 2: InvalidArgumentError: "
    r"indices = 2 is not in \[0, 2\)$"
  )
  with pytest.raises(StepError, match=message):
    training.train(tmp_path, SMALL, *faults, "train.save_interval_steps=1", *layout)
  assert training.newest(tmp_path).step == 2


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    (
      "[[{{node Sqrt}}]]\n [[layer1/PartitionedCall]]\n"
      " [[stage1/micro3/backward/PartitionedCall]] [Op:__inference_step_1]",
      "layer 'pool' (stage 1 on /device:CPU:1), backward of micro-batch 3",
    ),
    (
      "[[layer0_1/PartitionedCall]] [[stage0/micro1/weight_gradient/PartitionedCall]]",
      "layer 'conv' (stage 0 on /device:CPU:0), weight gradient of micro-batch 1",
    ),
    (
      "[[stage1/micro0/recompute/PartitionedCall]]",
      "stage 1, layers 'faulty' to 'loss' on /device:CPU:1, recompute of micro-batch 0",
    ),
    ("RecvAsync is cancelled. [[{{node Func/cond/else/_1/_127}}]]", ""),
  ],
)
def test_the_place_is_read_off_the_nodes_of_an_error(tf, text, expected):
  run = training.make_run(SMALL, "pipeline.lengths=(2,7)")
  assert Places(run).of_error(text) == expected


def test_a_layer_that_cannot_be_built_is_named(tf, tmp_path):
  place = rf"{faulty(0)}, fault_cases\.py:\d+"
  message = f"^building the step: {place}: ZeroDivisionError: a mistake in FProp$"
  with pytest.raises(BuildError, match=message):
    training.train(tmp_path, SMALL, "task.fault=build")


def test_a_weight_that_no_gradient_reaches_is_named_before_the_first_step(
  tf, tmp_path, monkeypatch, capsys
):
  fprop = tiny.Block.FProp
  monkeypatch.setattr(tiny.Block, "FProp", lambda *args: tf.stop_gradient(fprop(*args)))
  with pytest.raises(SystemExit) as ended:
    command.run(f"--model={training.IMAGE}", f"--logdir={tmp_path}", "--mode=train")
  assert ended.value.code == 1
  message = (
    "error: building the step: ValueError: weight 'block_0/b' has no gradient: the "
    "loss doesn't depend on it; leave it out, or declare it with trainable=False"
  )
  assert capsys.readouterr().err.splitlines()[-1] == message


def test_an_input_that_fails_is_named_and_what_was_saved_stays(tf, tmp_path):
  faults = ("input.fault=raise", "input.fault_step=3", "train.save_interval_steps=1")
  message = "^step 3: the input, FaultyInput, has failed: .* the disk is gone$"
  with pytest.raises(StepError, match=message):
    training.train(tmp_path, SMALL, *faults)
  assert training.newest(tmp_path).step == 2


def code(folder, *arguments):
  """Gives the code that the program ends with."""
  with pytest.raises(SystemExit) as ended:
    command.run(
      f"--model={SMALL}",
      f"--logdir={folder}",
      "--mode=train",
      "--max_steps=2",
      *arguments,
    )
  return ended.value.code


def test_the_program_ends_with_a_code_for_what_may_be_tried_again(tf, tmp_path, capsys):
  arguments = ("--set=input.fault=raise", "--set=input.fault_step=1")
  assert code(tmp_path, *arguments) == 70
  assert capsys.readouterr().err.startswith("failed: step 1: the input, FaultyInput, ")


def test_a_mistake_in_a_layer_is_shown_with_its_line_and_not_tried_again(
  tf, tmp_path, capsys
):
  assert code(tmp_path, "--set=task.fault=build") == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert re.fullmatch(
    r"error: building the step: layer 'faulty' .*, fault_cases\.py:\d+: "
    r"ZeroDivisionError: a mistake in FProp",
    line,
  )


def test_restored_weights_are_those_that_are_looked_at(tf, tmp_path):
  """The probe reads weights and random numbers of the step, not of the start."""
  training.train(tmp_path, SMALL, "train.max_steps=2")
  run = training.make_run(SMALL, *NAN)
  assert restore_newest(run, tmp_path)
  with pytest.raises(
    FloatingPointError, match="micro-batch 2 of step 3, the output of"
  ):
    Trainer(run, tmp_path, evaluates=False).train()


@pytest.mark.parametrize(
  "text",
  [
    "Graph execution error:\n\nDetected at node f\n"
    "{{function_node __f}} indices = 2 is not in [0, 2)\n\t [[{{node f}}]]",
    "Graph execution error:\n\n2 root error(s) found.\n"
    "  (0) INVALID_ARGUMENT:  {{function_node __f}} indices = 2 is not in [0, 2)\n"
    "\t [[{{node f}}]]\n  (1) CANCELLED:  {{function_node __g}} aborted",
  ],
)
def test_of_one_or_several_errors_of_a_step_the_first_is_told(tf, text):
  error = tf.errors.InvalidArgumentError(None, None, text)
  assert short(error) == "InvalidArgumentError: indices = 2 is not in [0, 2)"


def test_of_what_was_cancelled_the_layer_that_failed_is_looked_for(tf, tmp_path):
  """Which of several errors of a step TensorFlow gives, chance decides."""
  run = training.make_run(SMALL, "task.fault=raise", *NAN[1:], "train.max_steps=9")
  batches = list(run.batches().take(3))

  def cancelled(batch):
    text = "Graph execution error: [[stage0/micro1/forward/PartitionedCall]]"
    raise tf.errors.CancelledError(None, None, text)

  message = (
    f"^step 3: {faulty(0)}, forward of micro-batch 2: InvalidArgumentError: indices = 2"
  )
  with pytest.raises(StepError, match=message):
    Guard(run).step(3, cancelled, batches[2])
  place = "^step 1: stage 0, layers .*, forward of micro-batch 1: CancelledError: "
  with pytest.raises(StepError, match=place):
    Guard(run).step(1, cancelled, batches[0])
