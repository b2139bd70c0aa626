"""More faults that were there once, or would be silent if they were not refused."""

import gc

import numpy as np
import pytest

from tests.pipeline import graphs, harness, toy, toy_faults
from tests.pipeline.networks import Network, toy_batches, toy_network
from tests.pipeline.test_bugs import EVERY_CUT, states, train

DENSE, LOSS = toy.Dense.Params(), toy.Regression.Params()


def test_deep_cells_are_cut_without_recursion(tf):
  """A cell of 160 small layers, or of a long chain in one, overflowed the stack."""
  network = toy_network(DENSE, toy_faults.Chain.Params(), LOSS)
  plain, split = states(tf, network, [(1, "none"), (3, "cell")])
  assert not harness.differences(plain, split)


def test_factors_of_neighbouring_layers_are_not_folded(tf):
  """x * 0.3 and * 3.0 became one factor where both were on one device."""
  network = toy_network(
    DENSE,
    toy_faults.Scale.Params(),
    toy_faults.Scale.Params().Set(factor=3.0),
    DENSE,
    LOSS,
  )
  reference, *others = states(tf, network, EVERY_CUT)
  for case, state in zip(EVERY_CUT[1:], others, strict=True):
    assert not harness.differences(state, reference), case


def test_layers_that_differ_in_what_they_hold_are_other_functions(tf):
  """Two cells of one class and equal Params shared the first one's trace."""
  network = Network(
    lambda: toy.named(
      toy_faults.Counted.Params(), DENSE, toy_faults.Counted.Params(), DENSE, LOSS
    ),
    ("x",),
    toy_batches,
  )
  losses = []
  for num_partitions in (1, 5):
    toy_faults.Counted.made = 0
    losses.append(train(tf, network, num_partitions)[1])
  assert losses[0] == losses[1]


def test_rows_that_the_data_leaves_empty_can_be_recomputed(tf):
  """The tie of a recomputation read the first element of no row."""
  network = toy_network(
    DENSE,
    toy_faults.Routed.Params(),
    toy_faults.Treat.Params(),
    toy_faults.Merge.Params(),
    LOSS,
  )
  plain, layered = states(tf, network, [(1, "none"), (2, "layer")])
  assert not harness.differences(layered, plain)


@pytest.mark.parametrize("num_partitions", [1, 2, 3])
def test_three_gradients_of_a_tensor_are_added_in_one_order(tf, num_partitions):
  """TensorFlow's sum of three began with whatever buffer nobody else needed."""
  network = toy_network(
    DENSE, toy_faults.Thrice.Params(), toy_faults.Mix.Params(), DENSE, LOSS
  )
  plain, _ = harness.train(tf, network, 3, num_micro_batches=4)
  how = {"num_partitions": num_partitions, "num_micro_batches": 4}
  for name in ("gpipe", "zb_h1"):
    for remat in ("none", "cell", "layer"):
      state, _ = harness.train(tf, network, 3, name=name, remat=remat, **how)
      assert not harness.differences(state, plain), (name, remat)


def test_no_sum_of_a_step_has_more_than_two_terms(tf):
  network = toy_network(
    DENSE, toy_faults.Thrice.Params(), toy_faults.Mix.Params(), DENSE, LOSS
  )
  training = harness.start(tf, network, num_partitions=2, num_micro_batches=2)
  sums = [
    node.attr["N"].i
    for function in graphs.library(training.function).values()
    for node in function.node_def
    if node.op == "AddN"
  ]
  assert sums
  assert set(sums) == {2}


@pytest.mark.parametrize("body", [toy_faults.Turns, toy_faults.Sides])
def test_what_is_within_a_layer_outlives_its_trace(tf, body):
  """Garbage collected before the first step, TensorFlow had lost the loop's body."""
  network = toy_network(DENSE, body.Params(), LOSS)
  expected, _ = harness.train(tf, network, 1, num_micro_batches=2)
  training = harness.start(tf, network, num_partitions=2, num_micro_batches=2)
  gc.collect()
  training.step(network.batches(1)[0])
  assert not harness.differences(training.state(), expected)


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_a_layer_may_hold_a_tensor(tf, remat):
  """An eager tensor that an op reads directly could not be cut."""
  network = toy_network(DENSE, toy_faults.Holding.Params(), DENSE, LOSS)
  plain, split = states(tf, network, [(1, "none"), (3, remat)])
  assert not harness.differences(plain, split)


def test_layers_whose_params_have_no_text_share_nothing(tf):
  """An array among the Params ended in an error that named no layer."""
  first, second = (
    toy_faults.Table.Params().Set(table=np.full(8, factor)) for factor in (0.5, 2.0)
  )
  network = toy_network(first, second, LOSS)
  plain, split = states(tf, network, [(1, "none"), (3, "cell")])
  assert not harness.differences(plain, split)
  swapped, _ = states(tf, toy_network(second, first, LOSS), [(1, "none")] * 2)
  assert harness.differences(plain, swapped)


@pytest.mark.parametrize(
  "xla_layer", [toy_faults.Turns.Params(), toy_faults.Sides.Params()]
)
@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
def test_loops_and_branches_are_not_compiled(tf, xla_layer, remat):
  """The first step ended in an error of XLA."""
  network = toy_network(DENSE, xla_layer, DENSE, LOSS)
  with pytest.raises(ValueError, match=r"pipeline.xla=True: layer layer_1: .* is a"):
    harness.start(tf, network, remat=remat, xla=True)


@pytest.mark.parametrize(
  ("layer", "error", "message"),
  [
    (
      toy_faults.Named.Params(),
      AttributeError,
      "Named.FProp reads the name of its layer",
    ),
    (toy_faults.Boxed.Params(), TypeError, "Box cannot cross the border of a layer"),
    (toy_faults.Inside.Params(), ValueError, "AddLoss within a branch, a loop"),
    (toy_faults.Noisy.Params(), ValueError, r"op gradient/.*RandomUniform.* has state"),
    (toy_faults.Placed.Params(), ValueError, r"MatMul\) is placed on .*CPU:0"),
    (toy_faults.Wide.Params(), ValueError, "a loss must be a float32 scalar.*float64"),
  ],
)
def test_the_layer_that_is_refused_is_named(tf, layer, error, message):
  """Another mask in every run; gradients lost; errors that named no layer."""
  with pytest.raises(error, match=message) as refused:
    harness.start(tf, toy_network(DENSE, layer, DENSE, LOSS), num_micro_batches=2)
  notes = getattr(refused.value, "__notes__", [])
  assert "layer_1" in " ".join([str(refused.value), *notes])
