"""Each recipe for Cloud TPU is for its slice, and is planned to fit there."""

import re

import pytest

from tests.params.test_paper import CASES
from tfpipe import hardware, plan, registry
from tfpipe.schedule import ticks
from tools import tpu_plan, tpu_subject

# Devices and their GiB, from the pages "TPU v5e", "TPU v5p" and "TPU v6e" of Cloud TPU:
# a name counts chips, that of v5p the two cores of each.
SLICES = {
  "v5litepod-4": (4, 16),
  "v5litepod-16": (16, 16),
  "v6e-4": (4, 32),
  "v6e-8": (8, 32),
  "v5p-32": (16, 95),
  "v5p-128": (64, 95),
}
MOST = 0.6

NAMES = [name for name in registry.List() if ".cloud_tpu." in name]


def test_there_are_recipes_from_four_chips_to_64():
  slices = {registry.Get(name).SLICE for name in NAMES}
  assert slices == SLICES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_fits_its_slice(name):
  experiment = registry.Get(name)
  params = experiment().Model()
  devices, gib = SLICES[experiment.SLICE]
  made = plan.make(params, hardware.find(experiment.HARDWARE))
  assert made.hardware.memory_bytes == gib * 2**30
  assert len(made.cells) * made.num_replicas == devices
  assert max(made.device_bytes) <= MOST * gib * 2**30
  assert params.pipeline.backend == "spmd"
  assert params.pipeline.compute_dtype == "bfloat16"
  assert ticks.table(made.schedule).recomputes


def test_what_is_tightest_fits_as_one_program_too(tf):
  experiment = registry.Get("lm.cloud_tpu.Transformer103")
  subject = tpu_subject.make(experiment().Model())
  _, gib = SLICES[experiment.SLICE]
  assert tpu_plan.core_bytes(subject.plan, subject.program()).most < gib * 2**30


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_the_papers_network(name):
  costs = plan.make(registry.Get(name)().Model()).costs
  one = re.sub(r"R\d+$", "", name)  # of several such pipelines
  weights, _ = CASES[one.replace("cloud_tpu", "paper")]
  assert sum(cost.param_count for cost in costs) == weights
