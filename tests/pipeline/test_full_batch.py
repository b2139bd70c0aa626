"""Any number of micro-batches trains as plain TensorFlow does on the whole batch."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline import harness, reference
from tests.pipeline.networks import NETWORKS

STEPS = 3

# (M, K, schedule, remat)
CASES = [
  (1, 2, "1f1b", "layer"),
  (2, 1, "gpipe", "cell"),
  (4, 3, "gpipe", "none"),
  (8, 4, "1f1b", "cell"),
]


@functools.cache
def _expected(tf, network):
  return reference.train(tf, NETWORKS[network], NETWORKS[network].batches(STEPS))


def _check(tf, network, case):
  num_micro_batches, num_partitions, name, remat = case
  state, losses = harness.train(
    tf,
    NETWORKS[network],
    STEPS,
    num_partitions=num_partitions,
    num_micro_batches=num_micro_batches,
    name=name,
    remat=remat,
  )
  expected, expected_losses = _expected(tf, network)
  harness.assert_close(state, expected)
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)


# Dropout and padding; a weight on two stages; two tensors between stages; losses of
# middle stages; text with all of it, one of four micro-batches being padding only.
@pytest.mark.parametrize(
  "network", ["dropout", "tied", "two_inputs", "losses", "tokens", "transformer"]
)
def test_three_steps_equal_plain_tensorflow_on_the_whole_batch(tf, network):
  for case in CASES:
    _check(tf, network, case)


@settings(max_examples=6, derandomize=True)
@given(
  num_micro_batches=st.sampled_from([1, 2, 4, 8]),
  num_partitions=st.integers(1, 4),
  name=st.sampled_from(["gpipe", "1f1b"]),
  remat=st.sampled_from(["none", "cell", "layer"]),
)
def test_any_layout_equals_plain_tensorflow_on_the_whole_batch(
  tf, num_micro_batches, num_partitions, name, remat
):
  _check(tf, "dropout", (num_micro_batches, num_partitions, name, remat))


def test_clipping_acts_on_the_norm_over_all_stages(tf):
  network = NETWORKS["tied"]
  (batch,) = network.batches(1)
  plain = reference.Reference(tf, network)
  sums, _, weight = plain.gradients(batch, step=0)
  norm = reference.global_norm(reference.mean_gradients(plain, sums, weight))
  assert norm > harness.CLIP_NORM
  for num_partitions in (1, 2, 4):
    training = harness.start(
      tf, network, num_partitions=num_partitions, num_micro_batches=4
    )
    update = training.step(batch)["update"]
    np.testing.assert_allclose(update["grad_norm"], norm, rtol=1e-5)
    np.testing.assert_allclose(update["clip_factor"], 1 / norm, rtol=1e-5)
