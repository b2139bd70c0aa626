"""All work of a stage is on its device, as the optimized graph of each device shows."""

import pytest

from tests.pipeline import graphs, harness, toy, toy_bodies
from tests.pipeline.networks import (
  NETWORKS,
  Network,
  text_batches,
  tokens,
  toy_network,
)

# Stages are on CPU:1 to CPU:3. What falls back to the default device is on CPU:0, which
# has the learner's scalars and counters only: norm, clipping, learning rate, skips.
SCALAR_OPS = {
  *("AddV2", "All", "Any", "Cast", "ConcatV2", "GatherV2", "Greater", "IsFinite"),
  *("LogicalAnd", "LogicalNot", "Maximum", "Mul", "RealDiv", "Reciprocal", "SelectV2"),
  *("Sqrt", "Sub", "Sum"),
  # The flags of what is finite, put side by side; the first row of each micro-batch.
  *("ExpandDims", "Pack", "Unpack"),
}
CONTROL_OPS = {"Const", "Identity", "Merge", "NoOp", "Switch"}

# By network and stage, what one micro-batch needs in forward and backward.
WORK = {
  "tokens": [
    # Embedding: looked up, dropped; its gradient is sparse rows, summed.
    {"GatherV2": 1, "Less": 1, "UnsortedSegmentSum": 1},
    # Three products for a layer: forward, by input, by weight.
    {"BatchMatMulV2": 3, "Tanh": 1, "TanhGrad": 1},
    # A layer, and the softmax with the tied table.
    {"BatchMatMulV2": 3, "MatMul": 3, "Tanh": 1, "TanhGrad": 1, "BiasAddGrad": 1},
  ],
  "convolutions": [
    # Nobody needs the gradient of the image.
    {
      "Conv2D": 1,
      "Conv2DBackpropFilter": 1,
      "Conv2DBackpropInput": 0,
      "FusedBatchNormGradV3": 1,
    },
    {
      "Conv2D": 1,
      "Conv2DBackpropFilter": 1,
      "Conv2DBackpropInput": 1,
      "FusedBatchNormGradV3": 1,
    },
    {
      "Conv2D": 1,
      "Conv2DBackpropFilter": 1,
      "Conv2DBackpropInput": 1,
      "FusedBatchNormGradV3": 1,
      "MatMul": 3,
      "Less": 1,
    },
  ],
}

# By network and stage: trained weights, and moving averages of batch norms.
VARIABLES = {
  "tokens": [(1, 0), (2, 0), (3, 0)],
  "convolutions": [(3, 2), (3, 2), (5, 2)],
}


@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
@pytest.mark.parametrize("network", WORK)
def test_every_op_of_a_stage_is_on_its_device(tf, cpus, network, remat):
  nodes = graphs.network_nodes(tf, network, remat)
  assert set(nodes) == set(cpus)
  for device, placed in nodes.items():
    for node in placed:
      stage = graphs.stage_of(node)
      # A tied weight is read where it is.
      if stage is not None and "/weights" not in node.name:
        assert device == cpus[stage + 1], node.name


@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
@pytest.mark.parametrize("network", WORK)
def test_the_default_device_has_scalars_only(tf, cpus, network, remat):
  ops = graphs.count(graphs.network_nodes(tf, network, remat)[cpus[0]])
  counters = {"ReadVariableOp", "AssignVariableOp"}
  counters |= {"VariableV2"}  # nothing but a mark; see `call.reference`
  assert not set(ops) - SCALAR_OPS - CONTROL_OPS - counters
  # Steps and skips, added to and assigned.
  assert ops["AddV2"] == ops["AssignVariableOp"] == ops["ReadVariableOp"] == 2
  # Norms of gradients, update and weights, and the L2 term, in any network.
  assert ops["Sum"] == ops["GatherV2"] == ops["Mul"] == 4


@pytest.mark.parametrize("network", WORK)
def test_forward_and_backward_of_every_micro_batch_are_on_the_stages_device(
  tf, cpus, network
):
  nodes = graphs.network_nodes(tf, network, "none")
  for stage, work in enumerate(WORK[network]):
    ops = graphs.count(nodes[cpus[stage + 1]])
    expected = {op: graphs.MICRO_BATCHES * number for op, number in work.items()}
    assert {op: ops[op] for op in work} == expected


@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
@pytest.mark.parametrize("network", WORK)
def test_update_slots_and_averages_are_on_the_device_of_their_weight(
  tf, cpus, network, remat
):
  nodes = graphs.network_nodes(tf, network, remat)
  for stage, (trained, moving) in enumerate(VARIABLES[network]):
    ops = graphs.count(nodes[cpus[stage + 1]])
    # Weight and velocity; moving mean and variance; the average of the weight.
    assert ops["AssignVariableOp"] == 2 * trained + moving
    assert ops["AssignSubVariableOp"] == trained
    # The number of the mini-batch is with the first stage.
    assert ops["AssignAddVariableOp"] == (stage == 0)


def test_variables_are_on_the_device_of_the_stage_that_owns_them(tf, cpus):
  network = NETWORKS["batch_norm"]
  training = harness.start(
    tf, network, lengths=(2, 1, 4), num_partitions=3, first_device=1
  )
  layers = [f"layer_{i}" for i in range(7)]
  owner = dict(zip(layers, [0, 0, 1, 2, 2, 2, 2], strict=True))
  for name, variable in training.variables().items():
    layer = next((part for part in name.split("/") if part in owner), None)
    device = cpus[0] if layer is None else cpus[owner[layer] + 1]
    assert variable.device.endswith(device), name


def test_contributions_to_a_tied_weight_are_added_where_it_is(tf, cpus):
  tied = graphs.count(graphs.network_nodes(tf, "tokens", "none")[cpus[1]])
  layers = tokens()
  layers[-1].tied_to = ""
  network = Network(lambda: layers, ("ids",), text_batches)
  how = {"num_partitions": graphs.STAGES, "num_micro_batches": graphs.MICRO_BATCHES}
  training = harness.start(tf, network, first_device=1, **how)
  nodes = graphs.nodes_by_device(tf, training.function, network.batches(1)[0])
  assert tied["AddV2"] == graphs.count(nodes[cpus[1]])["AddV2"] + 1


def test_loops_compute_on_the_stages_device(tf, cpus):
  # TensorFlow passes what a loop's gradient takes from its forward through the default
  # device (Enter to NextIteration); all that computes is where it belongs.
  network = toy_network(
    toy.Dense.Params(), toy_bodies.WhileLoop.Params(), toy.Regression.Params()
  )
  training = harness.start(
    tf, network, num_partitions=3, num_micro_batches=2, first_device=1
  )
  nodes = graphs.nodes_by_device(tf, training.function, network.batches(1)[0])
  counts = {device: graphs.count(placed) for device, placed in nodes.items()}
  inside = ("Sigmoid", "SigmoidGrad", "TensorListPushBack", "TensorListPopBack")
  for device in cpus:
    found = [counts[device][op] for op in inside]
    assert found == ([2, 2, 4, 4] if device == cpus[2] else [0] * 4), device
  assert counts[cpus[2]]["MatMul"] == 6
