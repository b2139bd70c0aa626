"""A step whose values do not travel packed, as one compiler needs it."""

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

# (network, K, schedule, remat): weights tied over stages, moments, two pipes.
CASES = [
  ("tokens", 3, "gpipe", "cell"),
  ("tokens", 2, "chimera", "none"),
  ("dropout", 2, "zb_h1", "none"),
  ("convolutions", 3, "1f1b", "layer"),
  ("amoebanet", 2, "zb_h1", "cell"),
]


@pytest.mark.parametrize(("network", "num_partitions", "name", "remat"), CASES)
def test_unpacked_it_gives_the_same_bits(tf, network, num_partitions, name, remat):
  how = {"num_partitions": num_partitions, "name": name, "remat": remat}
  (packed, losses), (unpacked, same) = (
    harness.train(tf, NETWORKS[network], 2, num_micro_batches=4, packs=packs, **how)
    for packs in (True, False)
  )
  assert losses == same
  for entry, value in packed.items():
    np.testing.assert_array_equal(unpacked[entry], value, err_msg=entry)


def test_unpacked_every_value_of_a_gradient_can_be_compiled(tf):
  network = NETWORKS["convolutions"]
  pipeline = harness.make_pipeline(
    tf, network.layers(), input_fields=network.fields, packs=False, remat="cell"
  )
  function = pipeline.gradient_function(harness.specs(tf, network.batches(1)[0]))
  graph = function.graph.as_graph_def()
  nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
  assert not {"OptionalFromValue", "OptionalGetValue", "VariableV2"} & {
    node.op for node in nodes
  }
