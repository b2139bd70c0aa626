"""The memory of a step follows its schedule: what is dropped is gone when it counts."""

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.pipeline.memory_case import DIM, LAYERS
from tests.pipeline.toy_bodies import Deep

ROWS = 8192  # of a micro-batch
# Bytes that a stage keeps of one micro-batch: the outputs of half of the layers.
STAGE = 4 * ROWS * DIM * LAYERS // 2
# And of the loss: the error of each output.
LOSS = 1 / 4
# At most so many of these are temporary values, and gradients on their way.
SLACK = 14
# At most such a part of a peak is memory that an earlier step left, free for this one.
LEFT = 1 / 8

# (micro-batches, schedule, remat, layer)
ALL = (32, "gpipe", "none", "Dense")
ALL_OF_FEW = (4, "gpipe", "none", "Dense")
EARLY = (32, "1f1b", "none", "Dense")
EARLY_OF_FEW = (4, "1f1b", "none", "Dense")
REMAT = (32, "gpipe", "cell", "Dense")
SPLIT = (32, "zb_h1", "none", "Dense")
DEEP, DEEP_BY_LAYER, DEEP_BY_CELL = (
  (16, "gpipe", remat, "Deep") for remat in ("none", "layer", "cell")
)
CASES = [
  *(ALL, ALL_OF_FEW, EARLY, EARLY_OF_FEW, REMAT, SPLIT),
  *(DEEP, DEEP_BY_LAYER, DEEP_BY_CELL),
]

pytestmark = pytest.mark.skipif(
  not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks are measured on Linux"
)


class _Peak(NamedTuple):
  """Of the step that takes least, and of the one that takes most."""

  least: float
  most: float


@pytest.fixture(scope="module")
def peaks():
  """Gives what steps take at their peak beside weights and batch, in STAGEs."""
  cases = [(ROWS * m, m, name, remat, layer) for m, name, remat, layer in CASES]
  run = subprocess.run(
    [sys.executable, "-m", "tests.pipeline.memory_case", json.dumps(cases)],
    capture_output=True,
    text=True,
    check=False,
    # With oneDNN, TensorFlow keeps what is freed for itself.
    env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
  )
  assert run.returncode == 0, run.stderr
  found = [int(word) / STAGE for word in run.stdout.split()]
  pairs = map(_Peak, found[::2], found[1::2])
  return dict(zip(CASES, pairs, strict=True))


@pytest.mark.parametrize("case", [ALL, ALL_OF_FEW])
def test_gpipe_keeps_the_activations_of_all_micro_batches_in_both_stages(peaks, case):
  formula = (2 + LOSS) * case[0]
  assert (1 - LEFT) * formula <= peaks[case].most
  assert peaks[case].least <= formula + SLACK


@pytest.mark.parametrize("case", [EARLY, EARLY_OF_FEW])
def test_1f1b_keeps_two_micro_batches_and_one_whatever_their_number(peaks, case):
  assert peaks[case].least <= 2 + 1 + SLACK


def test_zero_bubble_keeps_two_micro_batches_and_their_gradients_in_each_stage(peaks):
  assert peaks[SPLIT].least <= 2 * 2 * 2 + SLACK


def test_remat_by_cell_keeps_the_input_of_a_stage(peaks):
  # Of the second stage: a quarter of what four layers give; the first has the batch.
  assert peaks[REMAT].least <= 32 / 4 + 2 + SLACK


def test_remat_by_layer_keeps_the_inputs_of_layers_and_one_layer_inside(peaks):
  assert peaks[DEEP].most >= (1 - LEFT) * 2 * 16 * Deep.INSIDE
  assert peaks[DEEP_BY_LAYER].least <= 2 * 16 + 2 * Deep.INSIDE / 4 + SLACK
  assert peaks[DEEP_BY_CELL].least <= 16 / 4 + 2 * Deep.INSIDE + SLACK
