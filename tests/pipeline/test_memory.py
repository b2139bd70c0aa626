"""The memory of a step follows its schedule: what is dropped is gone when it counts."""

import json
import os
import subprocess
import sys

import pytest

from tests.pipeline.memory_case import DIM, LAYERS

# (rows, micro-batches, schedule, remat), micro-batches being of equal size.
ALL = (131072, 16, "gpipe", "none")
REMAT = (131072, 16, "gpipe", "cell")
EARLY = (131072, 16, "1f1b", "none")
LONGER = (262144, 32, "1f1b", "none")
# Bytes of the outputs of all layers for 131072 rows.
STASH = 4 * 131072 * DIM * LAYERS

pytestmark = pytest.mark.skipif(
  not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks are measured on Linux"
)


@pytest.fixture(scope="module")
def peaks():
  """Gives the bytes that a step takes at its peak beside weights and batch, by case."""
  cases = [ALL, REMAT, EARLY, LONGER]
  run = subprocess.run(
    [sys.executable, "-m", "tests.pipeline.memory_case", json.dumps(cases)],
    capture_output=True,
    text=True,
    check=False,
    # With oneDNN, TensorFlow keeps what is freed for itself.
    env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
  )
  assert run.returncode == 0, run.stderr
  return dict(zip(cases, map(int, run.stdout.split()), strict=True))


def test_gpipe_without_remat_keeps_all_activations(peaks):
  assert STASH < peaks[ALL] < 2 * STASH


def test_remat_frees_the_activations_inside_a_stage_until_its_backward(peaks):
  # What remains: a border of 1/8 of the layers, one micro-batch of 16, and the next.
  assert peaks[REMAT] < STASH / 2


def test_1f1b_bounds_the_activations_by_the_stages_not_the_micro_batches(peaks):
  # Of stage 0 two micro-batches, of stage 1 one: 3/32 of all, and temporary values.
  assert peaks[EARLY] < STASH / 2
  assert peaks[LONGER] < STASH / 2
