"""Batches that are on their device before the step asks for them."""

import numpy as np
import pytest

from tests.program import training
from tfpipe.input.bucketed_input import BucketedTextInput
from tfpipe.program import batches as batches_lib
from tfpipe.program.watchdog import Watchdog


def test_the_training_batches_follow_the_step(tf):
  run = training.make_run(training.IMAGE)
  run.pipeline.step.assign(5)
  for found, expected in zip(
    run.batches().take(2), run.input.dataset(5).take(2), strict=True
  ):
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name])


def test_only_cpus_have_their_memory_on_the_host(tf, cpus):
  full = "/job:localhost/replica:0/task:0/device:"
  names = (*cpus, f"{full}CPU:0", f"{full}GPU:0", "/device:GPU:1")
  found = [batches_lib.is_cpu(name) for name in names]
  assert found == [True] * 5 + [False] * 2


def test_batches_of_a_cpu_are_the_inputs_own(tf, cpus):
  batches = tf.data.Dataset.range(3)
  assert batches_lib.ahead(batches, cpus[1]) is batches


def test_batches_are_copied_to_another_device(tf, cpus, monkeypatch):
  """The GPU's way, with a second CPU in its place."""
  monkeypatch.setattr(batches_lib, "is_cpu", lambda device: False)
  source = training.make_run(training.TEXT).input
  expected = list(source.dataset().take(3))
  found = list(batches_lib.ahead(source.dataset().take(3), cpus[1]))
  assert len(found) == 3
  for batch, plain in zip(found, expected, strict=True):
    for name, value in batch.items():
      assert value.device.endswith(cpus[1])
      np.testing.assert_array_equal(value, plain[name])


def test_an_error_of_the_input_comes_through(tf, cpus, monkeypatch):
  monkeypatch.setattr(batches_lib, "is_cpu", lambda device: False)
  broken = tf.data.Dataset.range(2).map(
    lambda i: tf.debugging.check_numerics(1.0 / tf.cast(1 - i, tf.float32), "broken")
  )
  rows = iter(batches_lib.ahead(broken, cpus[1]))
  assert float(next(rows)) == 1.0
  with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
    next(rows)


def test_the_planned_batch_is_the_first_of_the_longest_rows(tf):
  params = BucketedTextInput.Params().Set(
    batch_size=64, seq_len=128, bucket_lengths=(32, 64), shuffle=False
  )
  source = params.Instantiate()
  batches = list(source.dataset().take(source.steps_per_epoch))
  lengths = [batch["ids"].shape[1] for batch in batches]
  first = lengths.index(128)
  assert first > 0
  found = batches_lib.first_planned(source, "a test", Watchdog(0))
  for name, value in found.items():
    np.testing.assert_array_equal(value, batches[first][name])


def test_a_batch_meets_the_function_of_its_shape(tf):
  params = BucketedTextInput.Params().Set(
    batch_size=4, seq_len=128, bucket_lengths=(32, 64)
  )
  source = params.Instantiate()
  made = []

  def make(specs):
    shapes = {name: tuple(spec.shape) for name, spec in specs.items()}
    made.append(shapes)
    return lambda batch: (shapes, batch)

  function = batches_lib.by_shape(source, make)
  assert len(made) == 3
  for batch in source.dataset().take(20):
    shapes, passed = function(batch)
    assert passed is batch
    assert shapes == {name: tuple(value.shape) for name, value in batch.items()}
  plain = params.Copy().Set(bucket_lengths=()).Instantiate()
  shapes, _ = batches_lib.by_shape(plain, make)({})
  assert shapes == {name: (4, 128) for name in ("ids", "labels", "weights")}
