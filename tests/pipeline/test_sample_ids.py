"""Inputs, labels and side data of an example stay together at every stage."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import Network
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf as lazy_tf
from tfpipe.nested_map import NestedMap

ROWS = 12


class Check(Layer):
  """Counts for each example how often its id is not the one that rides along.

  The weight, 0, makes the loss depend on every stage, in value and gradient.
  """

  SIDE_INPUTS = ("sample_id",)

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((), WeightInit.Constant(0.0), l2=True))

  def FProp(self, theta, ids, *inputs):
    *wrong, side = inputs
    found = lazy_tf.cast(side.sample_id != ids, lazy_tf.float32)
    tied = theta.w * lazy_tf.cast(1 + ids, lazy_tf.float32)
    return ids, sum(wrong, found) + tied


class Labels(Layer):
  """The loss: wrong ids so far, and labels that are not the id."""

  SIDE_INPUTS = ("label",)

  def FProp(self, theta, ids, wrong, side):
    error = wrong + lazy_tf.cast(side.label != ids, lazy_tf.float32)
    bit = 2 ** lazy_tf.cast(ids, lazy_tf.float32)
    one = lazy_tf.constant(1.0)
    return NestedMap(
      loss=(
        lazy_tf.reduce_sum(error),
        lazy_tf.cast(lazy_tf.size(ids), lazy_tf.float32),
      ),
      seen=(lazy_tf.reduce_sum(bit), one),
    )


def _batch():
  ids = np.random.default_rng(0).permutation(ROWS).astype(np.int32)
  return {"id": ids, "sample_id": ids, "label": ids}


NETWORK = Network(
  lambda: toy.named(*[Check.Params()] * 4, Labels.Params()),
  ("id",),
  lambda _: [_batch()],
)


@pytest.mark.parametrize(
  ("num_micro_batches", "name", "remat"),
  [
    (1, "gpipe", "none"),
    (3, "gpipe", "cell"),
    (6, "gpipe", "layer"),
    (1, "1f1b", "cell"),
    (3, "1f1b", "none"),
    (6, "1f1b", "layer"),
  ],
)
def test_each_id_is_seen_once_and_meets_its_own_data_at_every_stage(
  tf, num_micro_batches, name, remat
):
  training = harness.start(
    tf,
    NETWORK,
    num_partitions=3,
    num_micro_batches=num_micro_batches,
    name=name,
    remat=remat,
  )
  batch = _batch()
  outputs = training.step(batch)
  assert (outputs["micro_batch_losses"] == 0).all()
  assert len(outputs["micro_batch_losses"]) == num_micro_batches
  assert outputs["metrics"]["loss"] == (0, ROWS)
  # Twelve powers of two add up to this only if each is there once.
  assert outputs["metrics"]["seen"][0] == 2**ROWS - 1
  # And in the backward pass: each weight's gradient is the sum of 1 + id.
  gradient = (ROWS + 1) * ROWS / 2 / ROWS
  assert outputs["update"]["grad_norm"] == pytest.approx(gradient * 4**0.5)


def test_a_moved_label_is_noticed_in_its_micro_batch(tf):
  training = harness.start(tf, NETWORK, num_partitions=3, num_micro_batches=3)
  batch = _batch()
  batch["label"] = np.concatenate([batch["label"][:4], np.roll(batch["label"][4:], 1)])
  outputs = training.step(batch)
  assert outputs["micro_batch_losses"].tolist() == [0, 4, 4]
