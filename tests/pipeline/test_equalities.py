"""The equalities that guard everything: any K, any exact schedule, remat or not."""

import itertools

import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

STEPS = 5

# (K, schedule, remat): 12 cases hold every pair of values, four apart hold every value.
CASES = [
  (1, "gpipe", "layer"),
  (2, "1f1b", "none"),
  (3, "gpipe", "cell"),
  (4, "1f1b", "layer"),
  (1, "1f1b", "cell"),
  (2, "gpipe", "layer"),
  (3, "1f1b", "none"),
  (4, "gpipe", "cell"),
  (1, "gpipe", "none"),
  (2, "1f1b", "cell"),
  (3, "1f1b", "layer"),
  (4, "gpipe", "none"),
]

# First case and number of cases; networks that take long to trace get fewer.
SELECTIONS = {
  "dropout": (0, 6),
  "tied": (6, 6),
  "batch_norm": (3, 6),
  "two_inputs": (9, 6),
  "losses": (1, 3),
  "tokens": (7, 3),
  "convolutions": (11, 3),
  "transformer": (5, 3),
  "amoebanet": (1, 3),
}


def _cases(network):
  first, number = SELECTIONS[network]
  return [CASES[(first + i) % len(CASES)] for i in range(number)]


def _train(tf, network, case, steps):
  num_partitions, name, remat = case
  return harness.train(
    tf,
    NETWORKS[network],
    steps,
    num_partitions=num_partitions,
    num_micro_batches=2 if network == "amoebanet" else 4,
    name=name,
    remat=remat,
  )


def test_the_cases_hold_every_pair_of_values():
  values = [(1, 2, 3, 4), ("gpipe", "1f1b"), ("none", "cell", "layer")]
  for left, right in itertools.combinations(range(3), 2):
    expected = set(itertools.product(values[left], values[right]))
    assert {(case[left], case[right]) for case in CASES} == expected
  chosen = {case for network in NETWORKS for case in _cases(network)}
  assert chosen == set(CASES)


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_slots_and_averages_are_bit_equal_for_every_cut_schedule_and_remat(
  tf, network
):
  reference, losses = _train(tf, network, (1, "gpipe", "none"), STEPS)
  assert len(set(losses)) == STEPS
  for case in _cases(network):
    state, case_losses = _train(tf, network, case, STEPS)
    assert not harness.differences(state, reference), case
    assert case_losses == losses, case
