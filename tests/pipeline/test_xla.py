"""Cells compiled with XLA: the same numbers within float32 rounding, for every cut."""

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

# Five steps of float32 sums in the order that XLA's fusions give.
TOLERANCE = 1e-4


@pytest.mark.parametrize("network", ["dropout", "transformer"])
def test_compiled_cells_give_the_weights_of_the_plain_graph(tf, network):
  plain, _ = harness.train(tf, NETWORKS[network], 5, num_micro_batches=4)
  for num_partitions, remat in ((1, "none"), (2, "cell"), (2, "layer")):
    compiled, _ = harness.train(
      tf,
      NETWORKS[network],
      5,
      num_micro_batches=4,
      num_partitions=num_partitions,
      remat=remat,
      xla=True,
    )
    for name, value in plain.items():
      np.testing.assert_allclose(
        compiled[name], value, TOLERANCE, TOLERANCE, err_msg=name
      )


def test_cells_are_compiled_when_asked_and_only_then(tf):
  for xla in (False, True):
    training = harness.start(tf, NETWORKS["dropout"], xla=xla)
    library = training.function.graph.as_graph_def().library
    compiled = [f for f in library.function if f.attr["_XlaMustCompile"].b]
    assert bool(compiled) == xla
