"""Spikes of the loss: shown, skipped, or the end of the run."""

import re

import numpy as np
import pytest

from tests.program import training
from tfpipe.pipeline.loss_window import LENGTH, LossWindow

SMALL = "tools.fault_cases.Small"
ONE = "task.learner.accumulate_steps=1"
# The first 32 losses are remembered before one is judged.
SPIKE = ("train.loss_spike=3", "task.fault=spike", "task.fault_step=36")
ENTRY = "train/recent_losses"


@pytest.fixture(scope="module")
def judge(tf):
  """Gives a function of losses → for each, whether it is a spike and the median."""

  def run(losses, factor=3.0):
    window = LossWindow(factor, refuses=False, device="/device:CPU:0")
    add = tf.function(window.add, autograph=False)
    found = [add(tf.constant(loss, tf.float32)) for loss in losses]
    return [(bool(spike), float(median)) for spike, median in found], window

  return run


def test_a_loss_is_compared_with_the_median_of_those_before(judge):
  losses = np.random.default_rng(0).uniform(1, 2, 3 * LENGTH).astype(np.float32)
  losses[[40, 70]] = 100
  found, window = judge(losses)
  for i, (spike, median) in enumerate(found):
    expected = np.median(losses[i - LENGTH : i]) if i >= LENGTH else np.nan
    np.testing.assert_allclose(median if i >= LENGTH else np.nan, expected, rtol=1e-6)
    assert spike == (i in (40, 70))
  np.testing.assert_array_equal(window.losses.numpy(), losses[-LENGTH:])


def test_a_lasting_rise_becomes_the_rule(judge):
  found, _ = judge([1.0] * LENGTH + [10.0] * LENGTH)
  spikes = [spike for spike, _ in found]
  # The median of 17 ones and 15 tens is 1, that of 16 and 16 is their mean.
  assert spikes[LENGTH:] == [True] * 16 + [10.0 > 3 * 5.5] + [False] * 15


def test_what_is_not_finite_is_neither_judged_nor_remembered(judge):
  found, window = judge([1.0] * LENGTH + [np.nan, np.inf, 2.0])
  assert [spike for spike, _ in found[LENGTH:]] == [False, True, False]
  assert np.isfinite(window.losses.numpy()).all()
  assert window.losses.numpy().tolist() == [1.0] * (LENGTH - 1) + [2.0]


@pytest.mark.parametrize("level", [0.0, -1.0])
def test_a_median_that_is_not_above_zero_says_nothing(judge, level):
  found, _ = judge([level] * LENGTH + [5.0])
  assert not any(spike for spike, _ in found)


def saved(folder, *overrides):
  training.train(folder, SMALL, ONE, *overrides)
  return training.newest(folder)


def changed(a, b):
  return {n for n in a.arrays if a.arrays[n].tobytes() != b.arrays[n].tobytes()}


def test_a_spike_is_shown_and_learned_from(tf, tmp_path, capsys):
  plain = saved(tmp_path / "plain", "train.max_steps=37")
  capsys.readouterr()
  spiky = saved(tmp_path / "spiky", *SPIKE, "train.max_steps=37")
  lines = re.findall(r"^step 36: the loss.*", capsys.readouterr().out, re.M)
  pattern = (
    r"step 36: the loss, 1\.25e\+05, is more than train\.loss_spike=3 x [12]\.\d+, the "
    "median before"
  )
  assert len(lines) == 1
  assert re.fullmatch(pattern, lines[0])
  # The loss that is added is a constant; so all that is learned is the same.
  del spiky.arrays[ENTRY]
  assert training.differences(plain, spiky) == []


def test_a_spike_is_skipped(tf, tmp_path, capsys):
  skip = (*SPIKE, "train.on_loss_spike=skip")
  before = saved(tmp_path, *skip, "train.max_steps=35")
  capsys.readouterr()
  after = saved(tmp_path, *skip, "train.max_steps=36")
  shown = capsys.readouterr().out
  assert re.search(
    r"^step 36: the loss, .* before: update skipped, 1 in a row$", shown, re.M
  )
  assert changed(before, after) == {"step", ENTRY, "learner/consecutive_skips"}


def test_a_spike_ends_the_run(tf, tmp_path):
  stop = (*SPIKE, "train.on_loss_spike=stop", "train.save_interval_steps=1")
  message = "^step 36: the loss, .*, the median before: update not applied$"
  with pytest.raises(FloatingPointError, match=message):
    training.train(tmp_path, SMALL, ONE, *stop)
  assert training.newest(tmp_path).step == 35


def test_an_interrupted_run_knows_the_losses_before(tf, tmp_path):
  how = (*SPIKE, "train.on_loss_spike=skip")
  whole = saved(tmp_path / "whole", *how, "train.max_steps=38")
  for steps, partitions in ((20, 1), (38, 3)):
    parts = saved(
      tmp_path / "parts",
      *how,
      f"train.max_steps={steps}",
      f"pipeline.num_partitions={partitions}",
    )
  assert training.differences(whole, parts) == []


def test_looking_for_spikes_can_begin_and_end_in_any_run(tf, tmp_path):
  plain = saved(tmp_path, "train.max_steps=2")
  assert ENTRY not in plain.arrays
  looking = saved(tmp_path, "train.max_steps=4", "train.loss_spike=2")
  assert np.isfinite(looking.arrays[ENTRY]).sum() == 2
  assert ENTRY not in saved(tmp_path, "train.max_steps=6").arrays
