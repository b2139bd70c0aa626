import math

import numpy as np
import pytest

from tests.program import command, reference, training
from tests.program.training import IMAGE, TEXT
from tfpipe.program.evaluate import evaluate, means
from tfpipe.program.guard import Guard
from tfpipe.program.train import restore_newest


@pytest.fixture(scope="module")
def trained(tf, tmp_path_factory):
  """Gives the folder of a run of six steps, with its evaluation after the last."""
  folder = tmp_path_factory.mktemp("trained")
  training.train(folder, IMAGE, evaluates=True)
  return folder


def restored(folder, *overrides):
  run = training.make_run(IMAGE, *overrides)
  assert restore_newest(run, folder)
  return run


def whole_split(run):
  """Gives all batches of the evaluation input as one, and their number."""
  batches = list(run.eval_input.dataset().as_numpy_iterator())
  names = batches[0]
  whole = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
  return whole, len(batches)


def test_the_whole_split_is_evaluated_with_the_averages_of_the_weights(tf, trained):
  run = restored(trained)
  batch, number = whole_split(run)
  # 13 examples in batches of 8.
  assert number == 2
  assert batch["weight"].tolist() == [1.0] * 13 + [0.0] * 3
  arrays = training.newest(trained).arrays
  weights = reference.weights_of(arrays)
  averages = reference.weights_of(arrays, "ema/")
  assert len(averages) == 8
  expected = reference.metrics({**weights, **averages}, batch, training=False)
  found = evaluate(run, run.eval_function(), Guard(run))
  assert found == pytest.approx(expected, rel=1e-6)
  without_averages = reference.metrics(weights, batch, training=False)
  assert found["loss"] != pytest.approx(without_averages["loss"], rel=1e-5)
  (record,) = training.metrics(trained, "eval")
  assert record == {"kind": "eval", "step": 6, **found}


def test_the_weights_themselves_are_used_where_no_averages_are_kept(tf):
  run = training.make_run(IMAGE, "task.learner.ema_decay=0")
  batch, _ = whole_split(run)
  weights = reference.weights_of(run.checkpoint().arrays)
  expected = reference.metrics(weights, batch, training=False)
  assert evaluate(run, run.eval_function(), Guard(run)) == pytest.approx(
    expected, rel=1e-6
  )


@pytest.mark.parametrize(
  ("batch_size", "num_micro_batches", "num_partitions"),
  [(13, 1, 1), (4, 4, 2), (10, 2, 4)],
)
def test_the_result_does_not_depend_on_batch_size_micro_batches_or_cut(
  tf, trained, batch_size, num_micro_batches, num_partitions
):
  run = restored(
    trained,
    f"input.batch_size={num_micro_batches}",
    f"eval_input.batch_size={batch_size}",
    f"pipeline.num_micro_batches={num_micro_batches}",
    f"pipeline.num_partitions={num_partitions}",
  )
  (record,) = training.metrics(trained, "eval")
  expected = {name: record[name] for name in ("loss", "accuracy", "accuracy_top5")}
  found = evaluate(run, run.eval_function(), Guard(run))
  assert found == pytest.approx(expected, rel=1e-6)


def test_nothing_changes_by_evaluating(tf, trained):
  run = restored(trained)
  before = run.checkpoint()
  function = run.eval_function()
  first = evaluate(run, function, Guard(run))
  assert evaluate(run, function, Guard(run)) == first
  assert training.differences(run.checkpoint(), before) == []


def test_eval_mode_gives_the_same_and_needs_no_training_data(tf, trained, capsys):
  before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
  lines = (trained / "metrics.jsonl").read_text().splitlines()
  # There are not as many training examples as a batch has.
  few = "--set=input.num_examples=1"
  command.run(f"--model={IMAGE}", f"--logdir={trained}", "--mode=eval", few)
  shown = capsys.readouterr().out.splitlines()
  again = (trained / "metrics.jsonl").read_text().splitlines()
  assert again == [*lines, lines[-1]]
  assert shown[-1].startswith("eval step=6 loss=")
  for path, content in before.items():
    assert path.read_bytes().startswith(content)


def test_perplexity_is_that_of_all_tokens_of_the_split(tf):
  run = training.make_run(TEXT)
  batches = list(run.eval_input.dataset().as_numpy_iterator())
  assert sum(batch["weights"].sum() for batch in batches) == 9 * 5
  function = run.eval_function()
  total = sum(float(function(batch)["log_perplexity"][0]) for batch in batches)
  found = evaluate(run, function, Guard(run))
  assert found["log_perplexity"] == pytest.approx(total / 45, rel=1e-6)
  assert found["perplexity"] == pytest.approx(math.exp(total / 45), rel=1e-6)


def test_means_divide_by_the_weight_and_have_no_value_without_one():
  found = means({"loss": (3.0, 4.0), "none": (0.0, 0.0), "log_perplexity": (9e9, 1.0)})
  assert found["loss"] == 0.75
  assert math.isnan(found["none"])
  assert math.isfinite(found["perplexity"])
