"""A mini-batch of another shape is refused at the door, or has its own function."""

import functools

import numpy as np
import pytest

from tests.pipeline import harness, reference, toy
from tests.pipeline.networks import (
  LENGTH,
  ROWS,
  Network,
  text_batches,
  tokens,
  toy_batches,
  toy_network,
)
from tfpipe.pipeline import micro_batch

NETWORK = toy_network(*[toy.Dense.Params()] * 2, toy.Regression.Params())


def test_micro_batches_are_equal_and_cover_the_batch_in_order(tf):
  assert [micro_batch.micro_batch_size(12, m) for m in (1, 2, 3, 12)] == [12, 6, 4, 1]
  batch = {"a": tf.range(6), "b": tf.reshape(tf.range(12), [6, 2])}
  parts = micro_batch.split(batch, 3)
  assert [part["a"].numpy().tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
  assert parts[1]["b"].numpy().tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
  ("num_micro_batches", "message"),
  [
    (3, "num_micro_batches=3 does not divide batch_size=8; 2 does"),
    (16, "num_micro_batches=16 does not divide batch_size=8; 8 does"),
    (0, "num_micro_batches=0: must be at least 1"),
  ],
)
def test_micro_batches_that_do_not_divide_the_batch_are_refused(
  num_micro_batches, message
):
  with pytest.raises(ValueError, match=message):
    micro_batch.micro_batch_size(ROWS, num_micro_batches)


def test_micro_batches_that_do_not_divide_are_refused_before_tracing(tf):
  pipeline = harness.make_pipeline(tf, NETWORK.layers(), num_micro_batches=3)
  specs = harness.specs(tf, toy_batches(1)[0])
  with pytest.raises(ValueError, match="does not divide batch_size=8"):
    pipeline.eval_function(specs)
  learner = harness.make_learner()
  learner.create_state(pipeline.trainable(), pipeline.l2_names())
  with pytest.raises(ValueError, match="does not divide batch_size=8"):
    pipeline.train_function(learner, specs)


@functools.cache
def _training(tf):
  """Traces one step for all tests that must not change it."""
  return harness.start(tf, NETWORK, num_partitions=2, num_micro_batches=2)


def _without_weight(batch):
  del batch["weight"]
  return batch


@pytest.mark.parametrize(
  ("change", "error"),
  [
    (lambda batch: {n: a[:4] for n, a in batch.items()}, r"\(4, 8\)"),
    (lambda batch: {**batch, "x": batch["x"][:, :4]}, r"\(8, 4\)"),
    (lambda batch: {**batch, "x": batch["x"].astype(np.float64)}, "float64"),
    (_without_weight, "weight"),
    (lambda batch: {**batch, "extra": batch["x"]}, "extra"),
  ],
)
def test_another_shape_or_field_changes_nothing(tf, change, error):
  training = _training(tf)
  before = training.state()
  with pytest.raises((TypeError, ValueError), match=error):
    training.step(change(dict(toy_batches(1)[0])))
  assert not harness.differences(training.state(), before)
  assert training.pipeline.step.numpy() == 0


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"target": (4, 8)}, r"field 'target' has 4 examples, 'x' has 8"),
    ({"weight": ()}, r"field 'weight' has shape \(\): .* the first being the examples"),
    (
      {"x": (None, 8)},
      r"field 'x' has shape \(None, 8\): its dimensions must be known",
    ),
  ],
)
def test_fields_that_cannot_be_cut_are_refused_by_name(tf, change, message):
  pipeline = harness.make_pipeline(tf, NETWORK.layers(), num_micro_batches=2)
  specs = harness.specs(tf, toy_batches(1)[0])
  for name, shape in change.items():
    specs[name] = tf.TensorSpec(shape, tf.float32)
  with pytest.raises(ValueError, match=message):
    pipeline.eval_function(specs)


@pytest.mark.parametrize(
  ("field", "message"),
  [
    ("target", "layer 'layer_2' reads the field 'target'"),
    ("x", "input_fields reads the field 'x', which the batch does not have"),
  ],
)
def test_a_missing_field_is_refused_with_its_reader(tf, field, message):
  pipeline = harness.make_pipeline(tf, NETWORK.layers())
  specs = harness.specs(tf, toy_batches(1)[0])
  del specs[field]
  with pytest.raises(ValueError, match=message):
    pipeline.eval_function(specs)


def test_lengths_and_batch_sizes_may_alternate_also_within_one_accumulated_update(tf):
  network = Network(tokens, ("ids",), text_batches)
  plain = reference.Reference(tf, network)
  sizes = [(ROWS, LENGTH), (4, 3), (4, 3), (ROWS, LENGTH)]
  batches = [text_batches(1, rows, length)[0] for rows, length in sizes]
  learner = harness.make_learner(accumulate_steps=2)
  training = harness.start(
    tf, network, learner, num_partitions=3, num_micro_batches=4, name="1f1b"
  )
  functions = {
    sizes[0]: training.function,
    sizes[1]: training.pipeline.train_function(learner, harness.specs(tf, batches[1])),
  }
  sums, losses, weights = zip(
    *[plain.gradients(batch, step) for step, batch in enumerate(batches[:2])],
    strict=True,
  )
  updates = []
  for size, batch in zip(sizes, batches, strict=True):
    outputs = harness.call(tf, functions[size], batch)
    updates.append(outputs["update"])
    if len(updates) <= 2:
      loss = outputs["metrics"]["loss"][0]
      np.testing.assert_allclose(loss, losses[len(updates) - 1], rtol=1e-5)
  assert [bool(update["applied"]) for update in updates] == [False, True, False, True]
  total = {name: sums[0][name] + sums[1][name] for name in sums[0]}
  expected = reference.mean_gradients(plain, total, sum(weights))
  np.testing.assert_allclose(
    updates[1]["grad_norm"], reference.global_norm(expected), rtol=1e-5
  )
  assert updates[1]["weight"] == sum(weights)
