import numpy as np
import pytest

from tests.program import command, reference, training
from tests.program.training import IMAGE, TEXT
from tfpipe.program.run import Run
from tfpipe.program.train import Trainer, restore_newest

POISONED = "tests.program.tiny.Poisoned"
BAD_LOSS = "tests.program.tiny.BadLoss"
SKIP = "task.learner.nonfinite=skip"
ONE_DEVICE = ("pipeline.num_partitions=1", "pipeline.remat=none")
FOUR_DEVICES = (
  "pipeline.num_partitions=4",
  "pipeline.schedule=1f1b",
  "pipeline.remat=layer",
)


def test_every_line_has_the_loss_of_a_run_on_one_device(tf, tmp_path):
  logs = []
  for folder, layout in (("one", ONE_DEVICE), ("four", FOUR_DEVICES)):
    training.train(tmp_path / folder, IMAGE, *layout)
    logs.append(training.untimed(tmp_path / folder))
  assert logs[0] == logs[1]
  assert [record["step"] for record in logs[0]] == [1, 2, 3, 4, 5, 6]
  assert len({record["loss"] for record in logs[0]}) == 6


def test_the_printed_loss_is_the_one_that_is_differentiated(tf, tmp_path, capsys):
  overrides = ("task.keep_prob=1", "pipeline.num_micro_batches=1", "train.max_steps=2")
  run = training.make_run(IMAGE, *overrides)
  expected = []
  for batch in run.input.dataset().take(2).as_numpy_iterator():
    weights = reference.weights_of(run.checkpoint().arrays)
    values = reference.metrics(weights, batch, training=True)
    values["loss"] += reference.l2(weights, 0.01)
    expected.append(values)
    # The second step's weights come from a run of one step.
    run = training.train(tmp_path / "one", IMAGE, *overrides[:2], "train.max_steps=1")
  training.train(tmp_path / "two", IMAGE, *overrides)
  shown = capsys.readouterr().out
  records = training.metrics(tmp_path / "two", "train")
  for record, values in zip(records, expected, strict=True):
    found = {name: record[name] for name in values}
    assert found == pytest.approx(values, rel=1e-5)
    assert f"step={record['step']}/2 loss={values['loss']:.5g} " in shown
    assert record["learning_rate"] == pytest.approx(0.1)


def test_progress_comes_at_its_interval_and_after_the_last_step(tf, tmp_path):
  overrides = ("train.max_steps=5", "train.log_interval_steps=3")
  training.train(tmp_path, IMAGE, *overrides)
  steps = [record["step"] for record in training.metrics(tmp_path, "train")]
  assert steps == [3, 5]


def test_checkpoints_come_at_their_interval_and_after_the_last_step(tf, tmp_path):
  overrides = ("train.max_steps=5", "train.save_interval_steps=2")
  training.train(tmp_path, IMAGE, *overrides, "train.keep_checkpoints=2")
  names = sorted(path.name for path in tmp_path.glob("checkpoint*"))
  assert names == ["checkpoint-00000004.npz", "checkpoint-00000005.npz"]


def test_no_step_and_no_checkpoint_if_there_is_nothing_left_to_do(tf, tmp_path):
  training.train(tmp_path, IMAGE, "train.max_steps=0")
  assert list(tmp_path.iterdir()) == []


def test_counters_move_once_for_each_update(tf, tmp_path):
  training.train(
    tmp_path, IMAGE, "task.learner.accumulate_steps=2", "train.max_steps=5"
  )
  arrays = training.newest(tmp_path).arrays
  assert arrays["step"] == 5
  assert arrays["learner/step"] == 2
  assert arrays["learner/accumulated_calls"] == 1
  assert arrays["learner/accumulated_weight"] == 8


def test_the_end_of_the_data_is_a_normal_event(tf, tmp_path, capsys):
  # 29 examples in batches of 8.
  for _ in range(2):  # the second time there is nothing left to do
    arguments = (f"--logdir={tmp_path}", "--set=input.repeat=false")
    command.run(f"--model={IMAGE}", *arguments)
    shown = capsys.readouterr().out.splitlines()
    assert "the training data ended after step 3" in shown
    assert shown[-1].startswith("eval step=3 loss=")
    assert training.newest(tmp_path).step == 3
  records = training.metrics(tmp_path, "train")
  assert [record["step"] for record in records] == [1, 2, 3]


def test_the_last_examples_are_trained_on_if_the_batch_is_padded(tf, tmp_path):
  overrides = ("input.repeat=false", "input.last_batch=pad")
  training.train(tmp_path, IMAGE, *overrides, "task.learner.accumulate_steps=5")
  assert training.newest(tmp_path).step == 4
  assert training.newest(tmp_path).arrays["learner/accumulated_weight"] == 29


def test_a_non_finite_number_stops_the_run_and_its_place_is_named(tf, tmp_path, capsys):
  arguments = (f"--model={POISONED}", f"--logdir={tmp_path}")
  found = command.refusal(*arguments, "--set=train.save_interval_steps=1")
  assert found.startswith(
    "stopped: step 3: the loss of micro-batch 0 is not finite: update not applied: the "
    "gradients of 8 weights are not finite: block_0/b, block_0/w, block_1/b, "
  )
  assert training.newest(tmp_path).step == 2
  assert "step=3/6" not in capsys.readouterr().out


def test_the_micro_batches_are_named_by_their_numbers_in_the_mini_batch(tf, tmp_path):
  overrides = ("pipeline.num_micro_batches=4", "input.first_bad=21", "input.num_bad=3")
  with pytest.raises(FloatingPointError, match=r"step 3: .* micro-batch 2, 3 is not f"):
    training.train(tmp_path, POISONED, *overrides)


def test_a_diverging_run_stops_and_keeps_its_checkpoints(tf, tmp_path):
  overrides = ("task.learner.learning_rate=1e30", "train.save_interval_steps=1")
  with pytest.raises(FloatingPointError, match=r"step \d+: .*gradients of \d+ weights"):
    training.train(tmp_path, IMAGE, *overrides)
  arrays = training.newest(tmp_path).arrays
  assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_bad_number_in_an_update_that_is_not_due_yet_is_not_saved(tf, tmp_path):
  overrides = ("task.learner.accumulate_steps=2", "train.save_interval_steps=1")
  with pytest.raises(FloatingPointError, match="step 3: the loss of micro-batch 0 is"):
    training.train(tmp_path, POISONED, *overrides)
  assert training.newest(tmp_path).step == 2


def test_a_loss_that_is_not_finite_stops_even_if_its_gradients_are(tf, tmp_path):
  with pytest.raises(FloatingPointError, match="step 3: the loss of micro-batch 0, 1"):
    training.train(tmp_path, BAD_LOSS)
  assert training.newest(tmp_path).step == 2


def test_a_skipped_update_changes_nothing_and_is_shown(tf, tmp_path, capsys):
  states = {}
  for steps in (2, 3, 6):
    folder = tmp_path / str(steps)
    training.train(folder, POISONED, SKIP, f"train.max_steps={steps}")
    states[steps] = training.newest(folder)
  before, after = states[2].arrays, states[3].arrays
  changed = [name for name in before if before[name].tobytes() != after[name].tobytes()]
  assert sorted(changed) == ["learner/consecutive_skips", "step"]
  assert after["learner/consecutive_skips"] == 1
  assert states[6].arrays["learner/consecutive_skips"] == 0
  assert states[6].arrays["learner/step"] == 5
  message = (
    "step 3: the loss of micro-batch 0 is not finite: update skipped, 1 in a row"
  )
  assert message in capsys.readouterr().out
  third = training.metrics(tmp_path / "6", "train")[2]
  assert third["loss"] is None


@pytest.mark.parametrize(
  ("value", "policy", "accumulate_steps"),
  [("nan", "stop", 1), ("inf", "skip", 1), ("-inf", "stop", 3), ("nan", "skip", 3)],
)
def test_a_bad_number_in_one_micro_batch_leaves_every_weight_as_it_was(
  tf, tmp_path, capsys, value, policy, accumulate_steps
):
  # Example 19 is row 3 of step 3, the second of its four micro-batches.
  overrides = (
    f"input.bad_value={value}",
    f"task.learner.nonfinite={policy}",
    f"task.learner.accumulate_steps={accumulate_steps}",
    "pipeline.num_micro_batches=4",
    *FOUR_DEVICES,
  )
  training.train(tmp_path, POISONED, "train.max_steps=2", *overrides)
  before = training.newest(tmp_path).arrays
  run = training.make_run(POISONED, "train.max_steps=3", *overrides)
  assert restore_newest(run, tmp_path)
  place = "step 3: the loss of micro-batch 1 is not finite: update"
  if policy == "stop":
    with pytest.raises(
      FloatingPointError, match=f"^{place} not applied: the gradients"
    ):
      Trainer(run, tmp_path, evaluates=False).train()
  else:
    Trainer(run, tmp_path, evaluates=False).train()
    assert f"{place} skipped, 1 in a row\n" in capsys.readouterr().out
  after = run.checkpoint().arrays
  changed = {n for n in before if before[n].tobytes() != after[n].tobytes()}
  # What was gathered in a window is dropped with the bad number.
  kinds = {name.split("/")[0] for name in changed - {"step"}}
  assert kinds == {"learner"} | ({"accumulators"} if accumulate_steps > 1 else set())
  assert not any(after[name].any() for name in changed if "accumul" in name)
  assert "learner/step" not in changed


def test_more_skips_in_a_row_than_allowed_stop_the_run(tf, tmp_path):
  # Bad are steps 3, 4 and 5.
  overrides = (SKIP, "task.learner.max_skips=1", "input.num_bad=20")
  with pytest.raises(
    FloatingPointError, match=r"step 4: .* 2 updates in a row were sk"
  ):
    training.train(tmp_path, POISONED, *overrides, "train.save_interval_steps=1")
  assert training.newest(tmp_path).step == 3


def test_missing_data_is_found_before_the_first_step(tf, tmp_path):
  for overrides in (("input.batch_size=30",), ("eval_input.batch_size=14",)):
    run = training.make_run(IMAGE, *overrides)
    with pytest.raises(
      ValueError, match=r"batch_size = \d\d is more than the \d\d exam"
    ):
      Trainer(run, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_a_text_model_learns(tf, tmp_path):
  training.train(tmp_path, TEXT, "train.max_steps=40", "input.num_examples=4")
  losses = [record["loss"] for record in training.metrics(tmp_path, "train")]
  assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])


def test_data_that_ended_before_the_checkpoint_is_refused(tf, tmp_path):
  training.train(tmp_path, IMAGE)
  message = command.refusal(
    f"--model={IMAGE}",
    f"--logdir={tmp_path}",
    "--set=input.repeat=false",
    "--max_steps=8",
  )
  assert message == (
    "error: input.repeat=False: the data ends after step 3, and the run is at step 6; "
    "it must be True to go on"
  )


def test_a_run_at_its_last_step_builds_no_step(tf, tmp_path, monkeypatch, capsys):
  training.train(tmp_path, IMAGE, "train.max_steps=1")
  monkeypatch.setattr(Run, "train_function", None)
  training.train(tmp_path, IMAGE, "train.max_steps=1")
  shown = capsys.readouterr().out.splitlines()
  assert "nothing to train: step 1 is not below max_steps=1" in shown
