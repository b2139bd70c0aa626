"""A run trains as one program on all devices, and is the same run in all else."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.program import training
from tests.program.training import IMAGE, TEXT
from tfpipe.program import export
from tfpipe.program.checkpoint import Checkpoint
from tfpipe.program.evaluate import evaluate
from tfpipe.program.guard import Guard

SPMD = "pipeline.backend=spmd"
MARGIN = 1e-5


def trained(folder: pathlib.Path, name: str, *overrides: str) -> Checkpoint:
  training.train(folder, name, *overrides)
  return training.newest(folder)


def assert_equal(found: Checkpoint, expected: Checkpoint) -> None:
  """Asserts that all entries are equal within the margin, counters exactly."""
  assert found.step == expected.step
  assert found.arrays.keys() == expected.arrays.keys()
  for name, value in expected.arrays.items():
    own = found.arrays[name]
    assert own.dtype == value.dtype
    if value.dtype == np.float32:
      np.testing.assert_allclose(own, value, rtol=MARGIN, atol=MARGIN, err_msg=name)
    else:
      np.testing.assert_array_equal(own, value, err_msg=name)


@pytest.mark.parametrize(
  ("name", "settings"),
  [
    (IMAGE, ("pipeline.num_partitions=2",)),
    (IMAGE, ("pipeline.num_partitions=3", "pipeline.schedule=1f1b")),
    (IMAGE, ("pipeline.remat=none", "task.learner.accumulate_steps=2")),
    (TEXT, ("pipeline.num_partitions=3", "pipeline.remat=layer")),
  ],
)
def test_five_steps_are_those_of_the_device_back_end(tf, tmp_path, name, settings):
  steps = ("train.max_steps=5", *settings)
  found = trained(tmp_path / "spmd", name, SPMD, *steps)
  assert_equal(found, trained(tmp_path / "devices", name, *steps))
  logged = [training.untimed(tmp_path / kind) for kind in ("spmd", "devices")]
  for own, expected in zip(*logged, strict=True):
    assert own.keys() == expected.keys()
    for key, value in expected.items():
      assert own[key] == (
        value if isinstance(value, str) else pytest.approx(value, 1e-4)
      )


CALLS = tuple(f"train.{n}=5" for n in ("steps_per_call", "log_interval_steps"))


@pytest.mark.parametrize(
  ("number", "settings"),
  [
    (4, ()),
    (2, ("pipeline.remat=none", "pipeline.schedule=1f1b")),
    (4, (*CALLS, "train.save_interval_steps=5")),
  ],
)
def test_two_pipelines_train_as_one_with_the_same_micro_batches(
  tf, tmp_path, number, settings
):
  sizes = ("pipeline.num_partitions=2", f"pipeline.num_micro_batches={number}")
  steps = ("train.max_steps=5", SPMD, *sizes, *settings)
  found = trained(tmp_path / "two", IMAGE, *steps, "pipeline.num_replicas=2")
  assert_equal(found, trained(tmp_path / "one", IMAGE, *steps))


REPLICAS = (SPMD, "pipeline.num_replicas=2")


@pytest.mark.parametrize(
  ("first", "then"), [((SPMD,), ()), ((), (SPMD,)), (REPLICAS, ()), ((), REPLICAS)]
)
def test_a_checkpoint_of_one_back_end_continues_in_the_other(tf, tmp_path, first, then):
  folder = tmp_path / "both"
  training.train(folder, IMAGE, "train.max_steps=3", *first)
  found = trained(folder, IMAGE, "train.max_steps=6", *then)
  assert_equal(found, trained(tmp_path / "one", IMAGE, "train.max_steps=6"))


def test_an_interrupted_run_is_an_uninterrupted_one_bit_for_bit(tf, tmp_path):
  training.train(tmp_path / "two", IMAGE, SPMD, "train.max_steps=2")
  found = trained(tmp_path / "two", IMAGE, SPMD, "train.max_steps=4")
  whole = trained(tmp_path / "one", IMAGE, SPMD, "train.max_steps=4")
  assert not training.differences(found, whole)


def test_several_steps_of_a_call_are_the_same_run(tf, tmp_path):
  calls = ("train.steps_per_call=3", "train.log_interval_steps=3")
  steps = ("train.save_interval_steps=3", SPMD)
  found = trained(tmp_path / "three", IMAGE, *steps, *calls)
  expected = trained(tmp_path / "one", IMAGE, *steps)
  assert not training.differences(found, expected)
  logged = training.untimed(tmp_path / "three")
  assert logged == [
    record for record in training.untimed(tmp_path / "one") if record["step"] % 3 == 0
  ]


def test_evaluation_and_export_have_the_trained_weights(tf, tmp_path):
  run = training.train(tmp_path, IMAGE, SPMD, "train.max_steps=2")
  other = training.make_run(IMAGE)
  other.restore(training.newest(tmp_path))
  found, expected = (
    evaluate(each, each.eval_function(), Guard(each)) for each in (run, other)
  )
  assert found == expected
  (text, checked) = export.export(run, tmp_path)
  assert "exported" in text
  assert "as in evaluation" in checked


def test_what_is_evaluated_is_the_state_after_the_last_step(tf, tmp_path):
  run = training.make_run(IMAGE, SPMD)
  function, batches = run.train_function(), iter(run.batches())
  guard, evaluation = Guard(run), run.eval_function()
  before = evaluate(run, evaluation, guard)
  function(next(batches))
  after = evaluate(run, evaluation, guard)
  assert before != after
  assert run.step == 1
  run.restore(run.checkpoint())
  assert evaluate(run, evaluation, guard) == after
