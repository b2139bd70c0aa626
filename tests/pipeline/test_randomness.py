"""Masks and start values go by names, steps and examples, never by the layout."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import NETWORKS, ROWS, Network
from tfpipe.layers import rng
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.lazy import tf as lazy_tf
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import SGD

UNITS = 20
STEPS = range(3)

BATCH = {"x": np.ones((ROWS, UNITS), np.float32)}


class Marked(Layer):
  """Units 1, 2, 4, ..., each dropped with probability 1/2: a sum tells which stay."""

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((UNITS,)))
    self.CreateSeed()

  def FProp(self, theta, x):
    kept = rng.uniform(theta.seed, x.shape) < 0.5
    return lazy_tf.where(kept, x * theta.w, 0.0)


class Total(Layer):
  """The sum of all units as loss, with weight 1 an example."""

  def FProp(self, theta, x):
    weight = lazy_tf.constant(float(x.shape[0]))
    return NestedMap(loss=(lazy_tf.reduce_sum(x), weight))


def _masks(tf, layer="marked", steps=STEPS, num_micro_batches=ROWS, **how):
  """Trains on one mini-batch at the given steps.

  Returns:
    the sum of kept units of each micro-batch, in forward, int [steps, micro-batches];
    and how many examples kept each unit, in backward, [steps, UNITS].
  """
  passed = toy.Penalty.Params().Set(factor=0.0)
  layers = [passed, Marked.Params().Set(name=layer), passed, Total.Params()]
  network = Network(lambda: toy.named(*layers), ("x",), lambda _: [BATCH])
  # The weights move by the mean gradient: by the share of examples that kept a unit.
  learner = harness.make_learner(
    optimizer=SGD.Params(),
    learning_rate=1.0,
    clip_gradient_norm_to_value=0.0,
    weight_decay_l2=0.0,
    ema_decay=0.0,
  )
  training = harness.start(
    tf, network, learner, num_micro_batches=num_micro_batches, **how
  )
  weight = training.pipeline.weights[f"{layer}/w"]
  units = 2.0 ** np.arange(UNITS)
  forward, backward = [], []
  for step in steps:
    training.pipeline.step.assign(step)
    weight.assign(units)
    forward.append(training.step(BATCH)["micro_batch_losses"].astype(np.int64))
    backward.append((units - weight.numpy()) * ROWS)
  return np.array(forward), np.array(backward)


@functools.cache
def _examples(tf):
  """Gives what each example keeps at each step, without a pipeline."""
  return _masks(tf)[0]


@pytest.mark.parametrize(
  ("num_partitions", "name", "remat"),
  [
    (1, "gpipe", "layer"),
    (2, "1f1b", "layer"),
    (3, "1f1b", "none"),
    (4, "gpipe", "cell"),
  ],
)
def test_every_layout_and_its_backward_meet_the_same_masks(
  tf, num_partitions, name, remat
):
  how = {"num_partitions": num_partitions, "name": name, "remat": remat}
  forward, backward = _masks(tf, **how)
  assert (forward == _examples(tf)).all()
  kept = forward[..., None] >> np.arange(UNITS) & 1
  assert (backward == kept.sum(axis=1)).all()


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
def test_an_example_meets_the_same_mask_for_any_number_of_micro_batches(
  tf, num_micro_batches
):
  expected = _examples(tf).reshape(len(STEPS), num_micro_batches, -1).sum(axis=2)
  forward, _ = _masks(tf, num_micro_batches=num_micro_batches, num_partitions=2)
  assert (forward == expected).all()


def test_masks_differ_between_layers_steps_and_examples(tf):
  masks = [_examples(tf), _masks(tf, layer="other")[0]]
  every = np.concatenate(masks).ravel()
  assert len(set(every)) == len(every)
  kept = every[:, None] >> np.arange(UNITS) & 1
  # Of 960 fair draws; three standard deviations.
  assert abs(kept.mean() - 0.5) < 3 * 0.5 / kept.size**0.5


def test_masks_of_late_steps_are_new(tf):
  # 2^24 is where float32, and 2^32 where 32 bits, would lose count of steps.
  late = [5_000_000, 5_000_001, 2**24, 2**24 + 1, 2**32, 2**32 + 1]
  masks, _ = _masks(tf, steps=[*STEPS, *late])
  assert len(set(masks.ravel())) == masks.size


def test_start_values_go_by_seed_and_name_for_every_number_of_partitions(tf):
  network = NETWORKS["transformer"]

  def values(num_partitions, seed):
    pipeline = harness.make_pipeline(
      tf,
      network.layers(),
      num_partitions=num_partitions,
      input_fields=network.fields,
      seed=seed,
    )
    return {name: weight.numpy() for name, weight in pipeline.weights.items()}

  expected = values(1, seed=1)
  for num_partitions in (2, 3, 4):
    assert not harness.differences(values(num_partitions, seed=1), expected)
  other = values(1, seed=2)
  drawn = [name for name, value in expected.items() if np.ptp(value)]
  assert {name.split("/")[-1] for name in drawn} >= {"w"}
  # Equal layers and equal shapes start apart; so does every weight with another seed.
  starts = [v[name].ravel()[:8].tobytes() for v in (expected, other) for name in drawn]
  assert len(set(starts)) == len(starts)
