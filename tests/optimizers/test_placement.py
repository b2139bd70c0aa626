"""All work for a weight is done on its device, and no layout changes a bit."""

from collections import Counter

import numpy as np
import pytest

from tests.optimizers.training import Training, assert_same_bits, random_gradients
from tests.pipeline import graphs
from tfpipe.optimizers import Adafactor, Adam

SHAPES = {"a": (50, 7), "b": (300,), "c": (20, 30), "d": (), "e": (9, 11), "f": (5,)}
VALUES = random_gradients({name: np.zeros(SHAPES[name]) for name in SHAPES}, 1)[0]
L2_NAMES = ("a", "c", "e")
SETTINGS = {
  "learning_rate": 0.01,
  "clip_gradient_norm_to_value": 0.3,
  "weight_decay_l2": 0.1,
  "ema_decay": 0.9,
  "ema_ramp": True,
}


def pairs_on_devices(cpus):
  """Puts two weights on each device but the first, which is the host."""
  return {name: cpus[1 + index // 2] for index, name in enumerate(SHAPES)}


def ops_by_device(tf, training, gradients):
  """Runs one step; returns the counts of its ops in each device's partition graph."""
  from tensorflow.python.eager import context

  tensors = {name: tf.constant(value) for name, value in gradients.items()}
  function = training.function.get_concrete_function(tensors, tf.constant(2.0))
  library = graphs.library(function)
  context.context().executor.wait()
  context.enable_graph_collection()
  try:
    function(tensors, tf.constant(2.0))
    partitions = context.export_run_metadata().partition_graphs
  finally:
    context.disable_graph_collection()
  counts = {}
  for partition in partitions:
    ops = Counter(n.op for node in partition.node for n in graphs.inside(node, library))
    if "ReadVariableOp" in ops:
      counts["/device:" + partition.node[0].device.split("/device:")[1]] = ops
  return counts


@pytest.mark.parametrize("accumulate_steps", [1, 2])
def test_work_for_a_weight_is_on_its_device(tf, cpus, accumulate_steps):
  training = Training(
    tf,
    VALUES,
    L2_NAMES,
    pairs_on_devices(cpus),
    accumulate_steps=accumulate_steps,
    **SETTINGS,
  )
  gradients = random_gradients(VALUES, 1)[0]
  counts = ops_by_device(tf, training, gradients)
  assert set(counts) == set(cpus)
  accumulates = accumulate_steps > 1
  host = counts.pop(cpus[0])
  # Squares of two gradients, updates and new weights on each device, and the L2 term
  # of either branch.
  for ops in counts.values():
    assert ops["L2Loss"] == 7 + accumulates
    assert ops["Square"] == 2
    # Each weight with two slots, and its emptied accumulator.
    assert ops["AssignVariableOp"] == 2 * (3 + accumulates)
    assert ops["AssignSubVariableOp"] == 2
    assert ops["AssignAddVariableOp"] == 2 * accumulates
  for op in ("L2Loss", "Square", "AssignSubVariableOp"):
    assert host[op] == 0
  # Steps, skips; accumulated calls (counted or emptied) and weight.
  assert host["AssignVariableOp"] == 2 + 3 * accumulates
  assert host["AssignAddVariableOp"] == accumulates


def test_only_a_fixed_number_of_values_leaves_a_device(tf, cpus):
  def sends(count):
    values = {f"{device}{i}": [1.0, 2.0] for device in (1, 2) for i in range(count)}
    devices = {name: cpus[int(name[0])] for name in values}
    training = Training(tf, values, tuple(values), devices, **SETTINGS)
    counts = ops_by_device(tf, training, values)
    return [counts[device]["_Send"] for device in cpus[1:3]]

  assert sends(3) == sends(9)


@pytest.fixture
def fixed_arithmetic(tf):
  """Turns off the rewriting of arithmetic by what is seen together on a device."""
  optimizer = tf.config.optimizer
  before = optimizer.get_experimental_options().get("arithmetic_optimization", True)
  optimizer.set_experimental_options({"arithmetic_optimization": False})
  yield
  optimizer.set_experimental_options({"arithmetic_optimization": before})


@pytest.mark.usefixtures("fixed_arithmetic")
@pytest.mark.parametrize("optimizer", [Adam.Params(), Adafactor.Params()])
def test_layout_of_the_weights_does_not_change_a_bit(tf, cpus, optimizer):
  layouts = [
    dict.fromkeys(SHAPES, cpus[0]),
    pairs_on_devices(cpus),
    {name: cpus[-1 - index % 4] for index, name in enumerate(SHAPES)},
  ]
  trainings = [
    Training(
      tf, VALUES, L2_NAMES, layout, accumulate_steps=2, optimizer=optimizer, **SETTINGS
    )
    for layout in layouts
  ]
  for gradients in random_gradients(VALUES, 8):
    metrics = [training.step(gradients, weight=3.0) for training in trainings]
    assert_same_bits(metrics[1], metrics[0])
    assert_same_bits(metrics[2], metrics[0])
  assert metrics[0]["applied"]
  assert 0 < metrics[0]["clip_factor"] < 1
  for training in trainings[1:]:
    assert_same_bits(training.values(), trainings[0].values())


def test_nonfinite_gradients_are_named_right_in_a_mixed_layout(tf, cpus):
  devices = {name: cpus[-1 - index % 4] for index, name in enumerate(SHAPES)}
  training = Training(tf, VALUES, devices=devices)
  for index, name in enumerate(training.learner.weight_names):
    gradients = random_gradients(VALUES, 1)[0]
    gradients[name][...] = np.inf
    metrics = training.step(gradients)
    assert metrics["nonfinite"].tolist() == [i == index for i in range(len(SHAPES))]
