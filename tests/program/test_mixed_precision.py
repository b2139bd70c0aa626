"""Runs in 16 bits: they learn as in float32, and continue where they were."""

import re

import numpy as np
import pytest

from tests.program import command, training
from tfpipe.optimizers.loss_scale import SCALE, UPDATES
from tfpipe.program import export

STEPS = 30
CHAR = (
  "input.batch_size=8",
  "input.seq_len=32",
  "eval_input.batch_size=8",
  "eval_input.seq_len=32",
  "pipeline.num_micro_batches=2",
  "task.num_layers=2",
  "task.model_dim=64",
  "task.ff_dim=256",
)
# Slow enough that the loss falls from step to step.
AMOEBANET = (
  "input.batch_size=32",
  "eval_input.batch_size=32",
  "pipeline.num_micro_batches=2",
  "task.learner.learning_rate=0.01",
  "task.dropout_keep=1.0",
  "task.num_filters=8",
)


def _losses(name: str, dtype: str, overrides) -> np.ndarray:
  run = training.make_run(name, *overrides, f"pipeline.compute_dtype={dtype}")
  step, batches = run.train_function(), iter(run.input.dataset())
  found = [step(next(batches))["metrics"]["loss"] for _ in range(STEPS)]
  return np.array([float(total) / float(weight) for total, weight in found])


def test_a_transformer_learns_as_in_float32(tf):
  full = _losses("lm.shakespeare.Char", "float32", CHAR)
  assert full[-1] < 0.5 * full[0]
  for dtype, tolerance in (("bfloat16", 0.02), ("float16", 0.005)):
    half = _losses("lm.shakespeare.Char", dtype, CHAR)
    np.testing.assert_allclose(half, full, atol=tolerance)
    assert (half != full).all()


def test_amoebanet_learns_as_in_float32(tf):
  """Step by step in the beginning, then on average.

  The largest under a window and batch norms over few pixels soon make much of little:
  start values that differ by 2^-9 part as far.
  """
  name = "image.fashion_mnist.AmoebaNetTiny"
  full, half = (_losses(name, dtype, AMOEBANET) for dtype in ("float32", "bfloat16"))
  np.testing.assert_allclose(half[:5], full[:5], rtol=0.02)
  assert full[20:].mean() < 0.6 * full[:5].mean()
  assert half.mean() == pytest.approx(full.mean(), rel=0.08)
  assert half[20:].mean() == pytest.approx(full[20:].mean(), rel=0.2)


def test_an_interrupted_run_continues_with_its_scale(tf, tmp_path):
  """The first updates are skipped; after three that are not the scale doubles."""
  settings = (
    "pipeline.compute_dtype=float16",
    "task.learner.loss_scale_steps=3",
    "task.learner.loss_scale=131072.0",
    "train.log_interval_steps=1",
  )
  for name, steps in (("whole", (12,)), ("parts", (5, 12))):
    for last in steps:
      folder = tmp_path / name
      training.train(folder, training.TEXT, *settings, f"train.max_steps={last}")
  whole, parts = (training.newest(tmp_path / name) for name in ("whole", "parts"))
  assert not training.differences(whole, parts)
  scales = [
    line["loss_scale"] for line in training.metrics(tmp_path / "whole", "train")
  ]
  assert scales[:2] == [2**17, 2**16]
  assert set(np.diff(np.log2(scales))) == {-1, 0, 1}
  assert 3 < whole.arrays["learner/step"] < 12
  assert {SCALE, UPDATES} <= whole.arrays.keys()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_exported_is_what_evaluation_computes(tf, tmp_path, dtype):
  run = training.make_run(training.TEXT, f"pipeline.compute_dtype={dtype}")
  _, checked = export.export(run, tmp_path)
  assert "as in evaluation" in checked
  loaded = tf.saved_model.load(str(tmp_path / "export/0"))
  outputs = loaded.signatures["serving_default"].structured_outputs
  assert {tensor.dtype for tensor in outputs.values()} == {tf.float32}


def test_a_run_continues_in_another_dtype(tf, tmp_path):
  """Only the loss scale comes and goes; the weights are float32 in any case."""
  for last, dtype in enumerate(("float32", "float16", "bfloat16", "float16"), 1):
    settings = f"pipeline.compute_dtype={dtype}", f"train.max_steps={last}"
    run = training.train(tmp_path, training.TEXT, *settings)
    assert run.step == last
    scaled = {SCALE, UPDATES} & training.newest(tmp_path).arrays.keys()
    assert len(scaled) == (2 if dtype == "float16" else 0)


def test_a_layer_that_cannot_compute_in_a_dtype_is_named_last(tf, tmp_path, capsys):
  flags = f"--model={training.IMAGE}", f"--logdir={tmp_path}"
  with pytest.raises(SystemExit, match="1"):
    command.run(*flags, "--set=pipeline.compute_dtype=bfloat16")
  last = capsys.readouterr().err.splitlines()[-1]
  assert re.match(r"error: building the step: .*'block_0'.*compute_dtype='bfl", last)
