"""Batches that are on their device before the step asks for them."""

import numpy as np
import pytest

from tests.program import training
from tfpipe.program import batches as batches_lib


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
