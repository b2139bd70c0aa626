"""A step for a compiler that compiles it as a whole."""

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

# (network, K, schedule, remat): weights tied over stages, two pipes, moments.
CASES = [
  ("tokens", 2, "chimera", "cell"),
  ("dropout", 2, "zb_h1", "cell"),
  ("convolutions", 3, "1f1b", "layer"),
]


@pytest.mark.parametrize(("network", "num_partitions", "name", "remat"), CASES)
def test_it_gives_the_same_bits(tf, network, num_partitions, name, remat):
  how = {"num_partitions": num_partitions, "name": name, "remat": remat}
  (apart, losses), (whole, same) = (
    harness.train(tf, NETWORKS[network], 2, num_micro_batches=4, whole=whole, **how)
    for whole in (False, True)
  )
  assert losses == same
  for entry, value in apart.items():
    np.testing.assert_array_equal(whole[entry], value, err_msg=entry)
