"""Cells compiled with XLA: the same numbers within float32 rounding, for every cut."""

import functools

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

# Five steps of float32 sums in the order that XLA's fusions give.
TOLERANCE = 1e-4


# (network, K, schedule, remat)
CASES = [
  ("dropout", 1, "gpipe", "none"),
  ("dropout", 2, "1f1b", "cell"),
  ("dropout", 3, "zb_h1", "none"),
  ("dropout", 2, "gpipe", "layer"),
  ("transformer", 2, "1f1b", "cell"),
  ("transformer", 3, "gpipe", "layer"),
  ("convolutions", 3, "1f1b", "none"),
  ("amoebanet", 2, "1f1b", "cell"),
]


@functools.cache
def _plain(tf, network, steps):
  return harness.train(tf, NETWORKS[network], steps, num_micro_batches=4)[0]


@pytest.mark.parametrize(("network", "num_partitions", "name", "remat"), CASES)
def test_compiled_cells_give_the_weights_of_the_plain_graph(
  tf, network, num_partitions, name, remat
):
  # Rectifiers and batch norms of a few values make more of a rounding with every step.
  steps = 1 if network in ("convolutions", "amoebanet") else 5
  compiled, _ = harness.train(
    tf,
    NETWORKS[network],
    steps,
    num_micro_batches=4,
    num_partitions=num_partitions,
    name=name,
    remat=remat,
    xla=True,
  )
  for entry, value in _plain(tf, network, steps).items():
    np.testing.assert_allclose(
      compiled[entry], value, TOLERANCE, TOLERANCE, err_msg=entry
    )


def test_cells_are_compiled_when_asked_and_only_then(tf):
  for xla in (False, True):
    training = harness.start(tf, NETWORKS["dropout"], xla=xla)
    library = training.function.graph.as_graph_def().library
    compiled = [f for f in library.function if f.attr["_XlaMustCompile"].b]
    assert bool(compiled) == xla
