"""A cell is traced once and called M times; a step's graph does not know layers."""

from collections import Counter

import pytest

from models.transformer.language_model import TransformerLm
from tests.pipeline import harness, toy
from tests.pipeline.networks import LENGTH, VOCAB, Network, text_batches, toy_network
from tfpipe import partition
from tfpipe.pipeline import pipeline as pipeline_lib
from tfpipe.pipeline.cell import make_cells

DENSE, LOSS = toy.Dense.Params(), toy.Regression.Params()


def _nodes(tf, layers, **how):
  """Counts the nodes of the graph of a step, outside of functions.

  What a variable is handed to the step by is an argument, not a node.
  """
  how = {"num_partitions": 2, **how}
  training = harness.start(tf, toy_network(*layers, LOSS), **how)
  return len(training.function.function_def.node_def)


def _interleaved(number):
  """Two layers with weights and many without, half of them in each stage."""
  half = [DENSE, *[toy.Plain.Params()] * number]
  return [*half, *half[1:], half[0]]


@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
def test_layers_without_weights_add_no_node(tf, remat):
  how = {"num_micro_batches": 4, "remat": remat, "name": "1f1b"}
  assert _nodes(tf, _interleaved(1), **how) == _nodes(tf, _interleaved(8), **how)


@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
@pytest.mark.parametrize("name", ["gpipe", "zb_h1"])
def test_layers_and_their_weights_add_no_node(tf, name, remat):
  how = {"num_micro_batches": 4, "remat": remat, "name": name, "num_partitions": 3}
  layers = [toy.Norm.Params(), DENSE]
  assert _nodes(tf, layers * 3, **how) == _nodes(tf, layers * 6, **how)


def test_hundreds_of_weights_add_no_node(tf):
  # Up to 16 tensors are one value; of more, values are made of values.
  how = {"num_micro_batches": 2, "num_partitions": 2}
  counts = [_nodes(tf, [DENSE] * number, **how) for number in (3, 20, 75)]
  assert len(set(counts)) == 1


def _transformer(num_layers):
  return TransformerLm.Params().Set(
    vocab_size=VOCAB,
    sequence_length=LENGTH,
    num_layers=num_layers,
    model_dim=8,
    ff_dim=16,
    num_heads=2,
  )


def test_a_layer_adds_no_node_for_each_of_its_weights(tf):
  def nodes(number):
    task = _transformer(number).Instantiate()
    network = Network(task.Layers, ("ids",), text_batches)
    training = harness.start(tf, network, num_micro_batches=2, num_partitions=2)
    library = training.function.graph.as_graph_def().library
    return sum(len(function.node_def) for function in library.function)

  # A block of 12 weights is in calls of forward, backward (the first, and those that
  # add), squares of gradients and of weights, and update. The rest reads its weights,
  # and packs, unpacks and hands on what is of it.
  assert (nodes(24) - nodes(12)) / 12 < 12


@pytest.mark.parametrize("remat", ["none", "cell"])
def test_a_micro_batch_adds_a_fixed_number_of_nodes_whatever_the_layers(tf, remat):
  def per_micro_batch(layers):
    counts = [_nodes(tf, layers, num_micro_batches=m, remat=remat) for m in (2, 4, 8)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    return (counts[1] - counts[0]) / 2

  assert per_micro_batch([DENSE] * 3) == per_micro_batch([DENSE] * 9)


@pytest.mark.parametrize("num_micro_batches", [1, 8])
def test_every_cell_is_traced_once(tf, monkeypatch, num_micro_batches):
  made = []

  def recording(*args, **kwargs):
    made.extend(make_cells(*args, **kwargs))
    return made

  monkeypatch.setattr(pipeline_lib, "make_cells", recording)
  network = toy_network(*[DENSE] * 3, toy.Norm.Params(), LOSS)
  training = harness.start(
    tf, network, num_partitions=3, num_micro_batches=num_micro_batches, remat="cell"
  )
  for batch in network.batches(2):
    training.step(batch)
  functions = {layer for cell in made for layer in cell.function.layers}
  # Three equal layers, a norm and the loss.
  assert [function.num_traces for function in functions] == [1, 1, 1]


def test_equal_cells_share_one_function_and_their_gradients(tf):
  layers = [p.Instantiate() for p in _transformer(6).Instantiate().Layers()]
  ids = tf.TensorSpec([2, LENGTH], tf.int32)
  batch = {"labels": ids, "weights": tf.TensorSpec([2, LENGTH])}
  ranges = partition.explicit(len(layers), [1, 2, 2, 2, 1])
  cells = make_cells(layers, ranges, ids, batch)
  middle = cells[1:4]
  assert len({id(cell.function) for cell in middle}) == 1
  assert len({id(cell.function) for cell in cells}) == 3
  names = [name for cell in middle for name in cell.weight_names()]
  assert len(set(names)) == len(names)
  uneven = partition.explicit(len(layers), [1, 2, 1, 3, 1])
  assert len({id(c.function) for c in make_cells(layers, uneven, ids, batch)}) == 5


def test_another_setting_or_shape_is_another_function(tf):
  def functions(*params):
    layers = [p.Instantiate() for p in toy.named(*params)]
    ranges = [(i, i + 1) for i in range(len(layers))]
    cells = make_cells(layers, ranges, tf.TensorSpec([2, 8]), {})
    return len({id(cell.function) for cell in cells})

  plain = toy.Plain.Params()
  assert functions(plain, plain, plain) == 1
  assert functions(plain, toy.Twice.Params(), plain) == 3
  assert functions(toy.Norm.Params(), toy.Norm.Params().Set(decay=0.5)) == 2


def test_equal_cells_are_one_function_in_the_graph(tf):
  def functions(number):
    layers = toy_network(*[DENSE] * number, LOSS)
    training = harness.start(tf, layers, num_partitions=number + 1, num_micro_batches=2)
    called = Counter(
      op.get_attr("f").name
      for op in training.function.graph.get_operations()
      if "PartitionedCall" in op.type
    )
    return len(called), sum(called.values())

  kinds, calls = functions(2)
  more_kinds, more_calls = functions(3)
  # Of a further stage its weights are read; forward and backward of two micro-batches;
  # the squares of its gradients, and of its weights, and the update: each one call for
  # a whole device, of a function that other devices have.
  assert more_kinds == kinds
  assert more_calls - calls == 1 + 2 * 2 + 3


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_every_call_of_a_cell_comes_after_a_mark_that_spares_looking_into_it(tf, name):
  network = toy_network(*[DENSE] * 3, toy.Norm.Params(), LOSS)
  training = harness.start(
    tf, network, num_partitions=3, num_micro_batches=4, name=name
  )
  operations = training.function.graph.get_operations()
  (mark,) = [op for op in operations if op.type == "VariableV2"]
  assert mark.outputs[0].dtype.name == "float32_ref"
  # As TensorFlow looks: forward along all edges from what gives references.
  after = {mark.name}
  for op in operations:  # in the order in which they were made
    before = [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
    if any(own.name in after for own in before):
      after.add(op.name)
  calls = [op for op in operations if "/micro" in op.name and "Call" in op.type]
  assert len(calls) == 4 * 3 * (2 if name == "1f1b" else 3)
  assert all(op.name in after for op in calls)
