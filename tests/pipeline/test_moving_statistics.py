"""Moving averages of batch norms: one step per mini-batch, whatever it is cut into."""

import numpy as np
import pytest

from models.amoebanet.blocks import ConvChain, conv_params
from tests.pipeline import harness, toy
from tests.pipeline.networks import (
  NETWORKS,
  ROWS,
  Network,
  image_batches,
  toy_network,
)
from tfpipe.layers.base import Layer
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.lazy import tf as lazy_tf
from tfpipe.nested_map import NestedMap

STEPS = 3
DECAY = 0.8

# The norm is first: what it sees depends on no other norm and no weight.
FIRST = toy_network(
  toy.Norm.Params().Set(decay=DECAY),
  toy.Dense.Params(),
  toy.Dense.Params(),
  toy.Regression.Params(),
)
KINDS = ("moving_mean", "moving_variance")


def _moving(state):
  return {name: value for name, value in state.items() if name.endswith(KINDS)}


@pytest.mark.parametrize(
  ("num_micro_batches", "num_partitions", "name", "remat"),
  [
    (1, 2, "1f1b", "cell"),
    (2, 1, "gpipe", "layer"),
    (4, 3, "1f1b", "none"),
    (8, 2, "gpipe", "cell"),
  ],
)
def test_one_step_per_mini_batch_with_the_moments_of_all_its_examples(
  tf, num_micro_batches, num_partitions, name, remat
):
  state, _ = harness.train(
    tf,
    FIRST,
    STEPS,
    num_micro_batches=num_micro_batches,
    num_partitions=num_partitions,
    name=name,
    remat=remat,
  )
  mean, variance = np.zeros(8), np.ones(8)
  for batch in FIRST.batches(STEPS):
    x = batch["x"].astype(np.float64)
    mean = DECAY * mean + (1 - DECAY) * x.mean(axis=0)
    variance = DECAY * variance + (1 - DECAY) * x.var(axis=0)
  np.testing.assert_allclose(state["layer_0/moving_mean"], mean, rtol=1e-5, atol=1e-7)
  np.testing.assert_allclose(state["layer_0/moving_variance"], variance, rtol=1e-5)


def test_recomputation_does_not_move_them(tf):
  network = NETWORKS["batch_norm"]
  moving = [
    _moving(
      harness.train(
        tf, network, STEPS, num_partitions=3, num_micro_batches=4, remat=remat
      )[0]
    )
    for remat in ("none", "cell", "layer")
  ]
  assert len(moving[0]) == 6
  for other in moving[1:]:
    assert not harness.differences(other, moving[0])


def test_a_frozen_norm_does_not_move_and_uses_what_it_has(tf):
  frozen = toy.Norm.Params().Set(trainable=False)
  network = toy_network(toy.Dense.Params(), frozen, toy.Regression.Params())
  plain = toy_network(toy.Dense.Params(), toy.Regression.Params().Set(name="layer_2"))
  losses = {}
  for remat in ("none", "cell", "layer"):
    state, losses[remat] = harness.train(
      tf, network, STEPS, num_partitions=2, num_micro_batches=4, remat=remat
    )
    assert (state["layer_1/moving_mean"] == 0).all()
    assert (state["layer_1/moving_variance"] == 1).all()
  assert losses["cell"] == losses["layer"] == losses["none"]
  # With mean 0, variance 1 and epsilon 1e-3 it divides by the root of 1.001.
  _, expected = harness.train(tf, plain, 1)
  assert losses["none"][0] == pytest.approx(expected[0], rel=2e-3)


def test_evaluation_does_not_move_them(tf):
  network = NETWORKS["batch_norm"]
  training = harness.start(tf, network, num_partitions=2, num_micro_batches=4)
  (batch,) = network.batches(1)
  training.step(batch)
  before = training.state()
  training.evaluate(batch)
  assert not harness.differences(training.state(), before)


class Sum(Layer):
  """The sum of squares as loss."""

  def FProp(self, theta, x):
    weight = lazy_tf.constant(float(x.shape[0]))
    return NestedMap(loss=(lazy_tf.reduce_sum(lazy_tf.square(x)), weight))


@pytest.mark.parametrize(("num_micro_batches", "num_partitions"), [(1, 2), (4, 1)])
def test_evaluation_equals_keras_after_training(tf, num_micro_batches, num_partitions):
  chain = ConvChain.Params().Set(
    convs=[conv_params((3, 3), 3, 4, (1, 1))], norm=BatchNorm.Params().Set(decay=0.5)
  )
  network = Network(lambda: toy.named(chain, Sum.Params()), ("image",), image_batches)
  training = harness.start(
    tf,
    network,
    num_micro_batches=num_micro_batches,
    num_partitions=num_partitions,
  )
  batches = network.batches(STEPS)
  for batch in batches:
    training.step(batch)
  weights = {
    name.removeprefix("layer_0/"): value
    for name, value in training.state().items()
    if name.startswith("layer_0/")
  }
  assert not np.allclose(weights["norm_0/moving_mean"], 0, atol=1e-2)
  kernel = next(value for value in weights.values() if value.ndim == 4)
  x = tf.nn.conv2d(batches[0]["image"], kernel, 1, "SAME")
  keras = tf.keras.layers.BatchNormalization(epsilon=1e-3)
  keras.build(x.shape)
  keras.set_weights([weights[f"norm_0/{kind}"] for kind in ("gamma", "beta", *KINDS)])
  expected = float(tf.reduce_sum(tf.square(keras(x, training=False)))) / ROWS
  total, weight = training.evaluate(batches[0])["loss"]
  assert total / weight == pytest.approx(expected, rel=1e-5)
