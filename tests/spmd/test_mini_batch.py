"""Mini-batches reach devices as vectors of micro-batches, and come back whole."""

from __future__ import annotations

import numpy as np
import pytest

from tfpipe.spmd import strategies
from tfpipe.spmd.feed import Feeder
from tfpipe.spmd.mini_batch import MiniBatch

ROWS, NUMBER = 6, 3
SHAPES = {"image": (ROWS, 4, 4, 3), "label": (ROWS,)}


@pytest.fixture
def mini_batch(tf):
  specs = {
    "image": tf.TensorSpec(SHAPES["image"]),
    "label": tf.TensorSpec(SHAPES["label"], tf.int32),
  }
  return MiniBatch(specs, NUMBER)


def arrays(*lead: int, pipelines: int = 1) -> dict[str, np.ndarray]:
  """Makes fields of which no two numbers are equal."""
  found = {}
  for name, (rows, *rest) in SHAPES.items():
    shape = (*lead, pipelines * rows, *rest)
    dtype = np.float32 if name == "image" else np.int32
    found[name] = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
  return found


def test_a_device_has_two_dimensions_of_every_field(tf, mini_batch):
  assert mini_batch.specs == {
    "image": tf.TensorSpec([3, 2 * 4 * 4 * 3]),
    "label": tf.TensorSpec([3, 2], tf.int32),
  }


def test_a_micro_batch_has_its_rows_in_their_own_shape(tf, mini_batch):
  batch = arrays()
  flat = {name: field[0] for name, field in mini_batch.flat(batch).items()}
  for name, field in batch.items():
    part = mini_batch.part(flat, name, tf.constant(1))
    np.testing.assert_array_equal(part, field[2:4])


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("pipelines", [1, 2])
def test_each_pipeline_has_its_rows_and_they_come_back(tf, mini_batch, lead, pipelines):
  strategy, _ = strategies.virtual(
    [device.name for device in tf.config.list_logical_devices("CPU")[: 2 * pipelines]]
  )
  feeder = Feeder(strategy, mini_batch, 2)
  batch = arrays(*lead, pipelines=pipelines)
  data = tf.data.Dataset.from_tensors(batch)
  (read,) = feeder.all(data)
  for fed in (feeder.one(batch), read):
    images = strategy.experimental_local_results(fed.everywhere["image"])
    assert len(images) == 2 * pipelines
    for number, image in enumerate(images):
      assert image.shape == (*lead, *mini_batch.specs["image"].shape)
      first = number // 2 * ROWS
      own = batch["image"][..., first : first + ROWS, :, :, :]
      np.testing.assert_array_equal(image, own.reshape(image.shape))
    assert sorted(fed) == sorted(batch)
    for name, field in batch.items():
      np.testing.assert_array_equal(fed[name], field)
