"""A backward in two parts computes what one does, once, each part on its own time."""

import re
from collections import Counter

import pytest

from tests.pipeline import graphs, harness, toy
from tests.pipeline.networks import NETWORKS, toy_network

# What costs: products, convolutions and their gradients, and the ops of the layers.
COSTLY = re.compile(
  r"MatMul|Conv2D|Grad|BitwiseXor|Tanh|FusedBatchNorm|Softmax|Segment"
)
WEIGHT_GRADIENTS = ("Conv2DBackpropFilter", "UnsortedSegmentSum", "BiasAddGrad")


def _costly_ops(tf, network, name, num_partitions=2, remat="none", **options):
  """Counts the ops that cost, by kind, in the optimized graphs of all devices."""
  training = harness.start(
    tf,
    network,
    num_partitions=num_partitions,
    num_micro_batches=4,
    name=name,
    remat=remat,
    **options,
  )
  nodes = graphs.nodes_by_device(tf, training.function, network.batches(1)[0])
  found = [node for placed in nodes.values() for node in placed]
  return {op: n for op, n in graphs.count(found).items() if COSTLY.search(op)}, found


@pytest.mark.parametrize("remat", ["none", "cell"])
@pytest.mark.parametrize("network", ["tokens", "convolutions", "transformer"])
def test_zero_bubble_computes_each_product_and_convolution_once(tf, network, remat):
  whole, _ = _costly_ops(tf, NETWORKS[network], "1f1b", remat=remat)
  split, _ = _costly_ops(tf, NETWORKS[network], "zb_h1", remat=remat)
  assert split == whole
  assert sum(whole.values()) > 0


def test_amoebanet_computes_each_convolution_once(tf):
  whole, _ = _costly_ops(tf, NETWORKS["amoebanet"], "1f1b")
  split, _ = _costly_ops(tf, NETWORKS["amoebanet"], "zb_h1")
  assert split == whole


def _scope(node):
  found = re.match(r"stage\d+/micro\d+/(\w+)/", node.name)
  return found.group(1) if found else ""


@pytest.mark.parametrize("network", ["tokens", "convolutions"])
def test_all_weight_gradients_are_in_w_and_no_other_is(tf, network):
  _, nodes = _costly_ops(tf, NETWORKS[network], "zb_h1")
  places = Counter(_scope(n) for n in nodes if graphs.kind(n) in WEIGHT_GRADIENTS)
  assert set(places) == {"weight_gradient"}
  kinds = ("Conv2DBackpropInput", "FusedBatchNormGradV3", "TanhGrad")
  # Not the first layer's, which only its own weights need.
  behind = [n for n in nodes if graphs.kind(n) in kinds and graphs.stage_of(n)]
  assert {_scope(node) for node in behind} == {"input_gradient"}


def test_products_are_divided_evenly(tf):
  # Five products a micro-batch: five in F; in B all but that of the network's input;
  # in W five.
  network = toy_network(*[toy.Dense.Params()] * 4, toy.Regression.Params())
  _, nodes = _costly_ops(tf, network, "zb_h1")
  places = Counter(_scope(n) for n in nodes if "MatMul" in n.op)
  assert places == {"forward": 20, "input_gradient": 16, "weight_gradient": 20}


def test_a_frozen_layer_has_no_weight_gradient_but_hands_its_input_gradient_on(tf):
  dense = toy.Dense.Params()
  frozen = dense.Copy().Set(trainable=False)
  network = toy_network(dense, frozen, frozen, toy.Regression.Params())
  _, nodes = _costly_ops(tf, network, "zb_h1")
  places = Counter(_scope(n) for n in nodes if "MatMul" in n.op)
  # Gradients: of the inputs of the last three, of the weights of the first and last.
  assert places == {"forward": 16, "input_gradient": 12, "weight_gradient": 8}
