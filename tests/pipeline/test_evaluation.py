"""Evaluation changes nothing, and its metrics depend on no layout."""

import functools

import numpy as np
import pytest

from tests.pipeline import harness, reference, toy
from tests.pipeline.networks import NETWORKS, toy_network

# Dropout and batch norm behave otherwise in training; one micro-batch is all padding.
NETWORK = toy_network(
  toy.Dense.Params().Set(keep=0.5),
  toy.Norm.Params(),
  toy.Dense.Params().Set(keep=0.5),
  toy.Regression.Params(),
)


def test_evaluation_in_between_does_not_change_training_by_a_bit(tf):
  batches = NETWORK.batches(4)
  states = []
  for evaluates in (False, True):
    training = harness.start(tf, NETWORK, num_partitions=2, num_micro_batches=4)
    for batch in batches[:2]:
      if evaluates:
        training.evaluate(batches[3])
        training.evaluate(batch)
      training.step(batch)
    assert training.pipeline.step.numpy() == 2
    states.append(training.state())
  assert not harness.differences(*states)


@functools.cache
def _expected(tf):
  """Evaluates all examples at once in plain TensorFlow, after a step of training."""
  first, second = NETWORK.batches(2)
  # One micro-batch, so that the batch norm sees what plain TensorFlow shows it.
  training = harness.start(tf, NETWORK)
  training.step(first)
  state = training.state()
  plain = reference.Reference(tf, NETWORK)
  plain.weights = {name: state[name] for name in plain.weights}
  return state, plain.metrics(second, do_eval=True)


@pytest.mark.parametrize(
  ("num_micro_batches", "num_partitions"), [(1, 1), (2, 4), (4, 3), (8, 2)]
)
def test_metrics_equal_plain_tensorflow_on_the_whole_batch(
  tf, num_micro_batches, num_partitions
):
  state, expected = _expected(tf)
  training = harness.start(
    tf,
    NETWORK,
    num_micro_batches=num_micro_batches,
    num_partitions=num_partitions,
  )
  for name, weight in training.pipeline.weights.items():
    weight.assign(state[name])
  found = training.evaluate(NETWORK.batches(2)[1])
  assert found.keys() == expected.keys() == {"loss", "mean_abs"}
  for name, pair in expected.items():
    np.testing.assert_allclose(found[name], pair, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("network", ["transformer", "convolutions"])
def test_metrics_are_bit_equal_for_every_number_of_partitions(tf, network):
  (batch,) = NETWORKS[network].batches(1)
  found = []
  for num_partitions in (1, 3):
    pipeline = harness.make_pipeline(
      tf,
      NETWORKS[network].layers(),
      num_partitions=num_partitions,
      num_micro_batches=2,
      input_fields=NETWORKS[network].fields,
    )
    function = pipeline.eval_function(harness.specs(tf, batch))
    found.append(harness.call(tf, function, batch))
  assert found[0] == found[1]


def test_other_values_replace_weights_for_evaluation_only(tf):
  training = harness.start(tf, NETWORK, num_partitions=2, num_micro_batches=2)
  for batch in NETWORK.batches(3):
    training.step(batch)
  (batch,) = NETWORK.batches(1)
  before = training.state()
  averages = {
    name.removeprefix("ema/"): variable
    for name, variable in training.learner.state().items()
    if name.startswith("ema/")
  }
  function = training.pipeline.eval_function(harness.specs(tf, batch), averages)
  found = harness.call(tf, function, batch)
  assert not harness.differences(training.state(), before)
  plain = reference.Reference(tf, NETWORK)
  plain.weights = {
    name: before.get(f"ema/{name}", before[name]) for name in plain.weights
  }
  np.testing.assert_allclose(
    found["loss"], plain.metrics(batch, do_eval=True)["loss"], rtol=1e-5
  )
  assert found["loss"] != training.evaluate(batch)["loss"]
