"""A network on one device, for any rows: which fields it needs, what it gives."""

import numpy as np
import pytest

from tests.pipeline import toy
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline.predictor import Predictor

ROWS = 4


class Scale(Layer):
  """(x, y) → (w·x, y), dropping nothing in evaluation; reads `label` in training."""

  SIDE_INPUTS = ("label", "mask")

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((3,), WeightInit.Constant(2.0)))
    self.CreateSeed()

  def FProp(self, theta, *inputs):
    x, y, side = inputs
    if not self.do_eval:
      x += side.label
    return x * theta.w * side.mask[:, None], y


class Sum(Layer):
  """The last layer: x + y, with the weight of another."""

  SIDE_INPUTS = ("label",)

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((3,), tied_to="scale/w"))

  def FProp(self, theta, *inputs):
    *_, side = inputs
    total = tf_sum(self.Predict(theta, *inputs[:-1]).sum - side.label)
    return NestedMap(loss=(total, total))

  def Predict(self, theta, *inputs):
    x, y = inputs
    return NestedMap(sum=x + y * theta.w)


def tf_sum(x):
  from tfpipe.lazy import tf

  return tf.reduce_sum(x)


def make(tf, *between):
  layers = [
    Scale.Params().Set(name="scale").Instantiate(),
    *between,
    Sum.Params().Set(name="sum").Instantiate(),
  ]
  specs = {
    "label": tf.TensorSpec([ROWS, 3]),
    "mask": tf.TensorSpec([ROWS]),
    "unread": tf.TensorSpec([ROWS], tf.int64),
    "y": tf.TensorSpec([ROWS, 3]),
    "x": tf.TensorSpec([ROWS, 3]),
  }
  weights = {"scale/w": tf.Variable([1.0, 2.0, 3.0])}
  return Predictor(layers, ("x", "y"), specs, weights)


@pytest.fixture
def network(tf):
  return make(tf)


def test_only_fields_that_predictions_depend_on_are_needed(network):
  assert network.fields == ["mask", "y", "x"]
  assert network.rows == ROWS


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 9])
def test_any_number_of_rows_gives_a_row_for_each(tf, network, rows):
  random = np.random.default_rng(rows)
  x, y = random.normal(size=[2, rows, 3]).astype(np.float32)
  mask = random.integers(0, 2, size=rows).astype(np.float32)
  w = np.array([1, 2, 3], np.float32)
  expected = x * w * mask[:, None] + y * w

  @tf.function(
    autograph=False,
    input_signature=[
      tf.TensorSpec([None]),
      tf.TensorSpec([None, 3]),
      tf.TensorSpec([None, 3]),
    ],
  )
  def serve(mask, y, x):
    return network.any_rows({"mask": mask, "y": y, "x": x})

  found = serve(mask, y, x)
  assert list(found) == ["sum"]
  assert found["sum"].shape == (rows, 3)
  np.testing.assert_allclose(found["sum"], expected, rtol=1e-6)


def ones(tf):
  return {
    "x": tf.ones([ROWS, 3]),
    "y": tf.ones([ROWS, 3]),
    "mask": tf.ones([ROWS]),
    "label": 0.5 * tf.ones([ROWS, 3]),
  }


def test_metrics_are_those_of_the_last_layer(tf, network):
  batch = ones(tf)
  # Each row: 2 · (1 + 2 + 3) - 3 · 0.5.
  assert network.metrics(batch)["loss"][0].numpy() == ROWS * 10.5


def test_losses_that_layers_add_in_evaluation_are_part_of_the_loss(tf):
  penalty = toy.Penalty.Params().Set(name="penalty", factor=0.5).Instantiate()
  total, weight = make(tf, penalty).metrics(ones(tf))["loss"]
  # Each row: 0.5 · (1 + 4 + 9) more.
  assert total.numpy() == ROWS * 17.5
  assert weight.numpy() == ROWS * 10.5
