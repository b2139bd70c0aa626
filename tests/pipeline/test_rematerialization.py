"""Re-materialization happens, once, and changes no number, whatever a stage holds."""

import pytest

from tests.pipeline import graphs, harness, reference, toy, toy_bodies
from tests.pipeline.networks import toy_network

# Ops of the forward pass that the gradient needs, and ops of the gradient.
FORWARD = {
  "tokens": ("Tanh", "BitwiseXor", "BiasAdd"),
  "convolutions": ("Conv2D", "FusedBatchNormV3", "Relu", "BitwiseXor"),
}
GRADIENT = {
  "tokens": ("TanhGrad", "UnsortedSegmentSum", "BiasAddGrad"),
  "convolutions": ("Conv2DBackpropFilter", "FusedBatchNormGradV3", "ReluGrad"),
}
# Products of one micro-batch: forward, with respect to the input and to the weight.
PRODUCTS = {"tokens": 3, "convolutions": 1}


def _counts(tf, network, remat):
  nodes = graphs.network_nodes(tf, network, remat)
  return graphs.count(node for placed in nodes.values() for node in placed)


@pytest.mark.parametrize("remat", ["cell", "layer"])
@pytest.mark.parametrize("network", FORWARD)
def test_each_forward_op_runs_twice_in_the_optimized_graph(tf, network, remat):
  plain, counts = _counts(tf, network, "none"), _counts(tf, network, remat)
  for op in FORWARD[network]:
    assert counts[op] == 2 * plain[op] > 0, op
  for op in GRADIENT[network]:
    assert counts[op] == plain[op] > 0, op
  kinds = ("MatMul", "BatchMatMulV2")
  assert sum(plain[op] for op in kinds) == 3 * PRODUCTS[network] * graphs.MICRO_BATCHES
  assert sum(counts[op] for op in kinds) == 4 * PRODUCTS[network] * graphs.MICRO_BATCHES


@pytest.fixture
def all_rewriting(tf):
  """Turns on what the harness turns off: Grappler as it is by default."""
  optimizer = tf.config.optimizer
  before = optimizer.get_experimental_options()
  optimizer.set_experimental_options(
    {"arithmetic_optimization": True, "remapping": True, "constant_folding": True}
  )
  yield
  optimizer.set_experimental_options(before)


@pytest.mark.parametrize("remat", ["cell", "layer"])
def test_recomputation_survives_all_of_grappler(tf, request, remat):
  network = toy_network(*[toy.Dense.Params()] * 4, toy.Regression.Params())
  training = harness.start(
    tf, network, num_partitions=2, num_micro_batches=2, remat=remat
  )
  request.getfixturevalue("all_rewriting")
  nodes = graphs.nodes_by_device(tf, training.function, network.batches(1)[0])
  counts = graphs.count(node for placed in nodes.values() for node in placed)
  # Of five products, for each of two micro-batches: forward, again, by weight, and by
  # input but for the first.
  assert counts["MatMul"] == 2 * (5 + 5 + 5 + 4)


def test_recomputation_of_cells_survives_compiling(tf, request):
  network = toy_network(toy.Dense.Params(), toy.Regression.Params())
  training = harness.start(
    tf, network, num_partitions=2, num_micro_batches=2, remat="cell", xla=True
  )
  request.getfixturevalue("all_rewriting")
  nodes = graphs.all_nodes(tf, training.function, network.batches(1)[0])
  calls = sorted(
    node.name
    for node in nodes
    if "/micro" in node.name and node.op == "PartitionedCall"
  )
  assert calls == [
    f"stage{stage}/micro{micro_batch}/{kind}/PartitionedCall"
    for stage in range(2)
    for micro_batch in range(2)
    for kind in ("backward", "forward", "recompute")
  ]


@pytest.mark.parametrize("body", toy_bodies.BODIES)
def test_a_stage_may_do_what_real_layers_do(tf, body):
  network = toy_network(toy.Dense.Params(), body.Params(), toy.Regression.Params())
  expected, _ = reference.train(tf, network, network.batches(2))
  states = [
    harness.train(tf, network, 2, num_partitions=2, num_micro_batches=2, remat=remat)[0]
    for remat in ("none", "cell", "layer")
  ]
  harness.assert_close(states[0], expected)
  for state in states[1:]:
    assert not harness.differences(state, states[0])


@pytest.fixture
def eagerly(tf):
  """Lets `tf.function`s run eagerly, as people do to look for a fault."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("body", toy_bodies.BODIES)
def test_a_stage_does_the_same_while_functions_run_eagerly(tf, request, body):
  network = toy_network(toy.Dense.Params(), body.Params(), toy.Regression.Params())
  how = {"num_partitions": 2, "num_micro_batches": 2}
  expected, _ = harness.train(tf, network, 2, **how)
  request.getfixturevalue("eagerly")
  for remat in ("none", "cell", "layer"):
    state, _ = harness.train(tf, network, 2, remat=remat, **how)
    assert not harness.differences(state, expected)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_a_frozen_first_stage_computes_nothing_again(tf, name):
  frozen, dense = toy.Dense.Params().Set(trainable=False), toy.Dense.Params()
  network = toy_network(frozen, frozen, dense, dense, toy.Regression.Params())
  training = harness.start(
    tf,
    network,
    name=name,
    remat="cell",
    num_partitions=2,
    num_micro_batches=4,
    lengths=(2, 3),
  )
  nodes = graphs.nodes_by_device(tf, training.function, network.batches(1)[0])
  counts = graphs.count(node for placed in nodes.values() for node in placed)
  # Of two products the forward; of three that, again, by weight, and by input but for
  # the first of them.
  assert counts["MatMul"] == 4 * (2 + 3 + 3 + 3 + 2)
  plain = harness.train(tf, network, 2, num_micro_batches=4)[0]
  how = {"num_partitions": 2, "lengths": (2, 3), "num_micro_batches": 4}
  found = harness.train(tf, network, 2, name=name, remat="cell", **how)[0]
  assert not harness.differences(found, plain)
