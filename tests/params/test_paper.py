"""The registered sizes of the paper are the paper's (arXiv:1811.06965, table 1)."""

import pytest

from tfpipe import plan as plan_lib
from tfpipe import registry

# Weights as counted from the published specification, without the aux head, for 1,000
# classes; the paper prints 557M, 82M, 318M, 542M, 1.05B and 1.8B.
AMOEBANETS = {
  "AmoebaNetB18x512": (557_277_864, 4),
  "AmoebaNetD18x208": (81_137_437, 1),
  "AmoebaNetD18x416": (317_541_696, 1),
  "AmoebaNetD18x544": (540_196_240, 2),
  "AmoebaNetD36x544": (1_053_293_776, 4),
  "AmoebaNetD72x512": (1_842_610_248, 8),
  "AmoebaNetD18x256": (121_911_016, 2),
  "AmoebaNetD18x128": (31_555_384, 2),
}

# As the paper prints them: 282.2M, 785.8M, 5.3B, 21.0B and 83.9B.
TRANSFORMERS = {
  "Transformer3": (282_178_816, 1),
  "Transformer13": (785_761_536, 1),
  "Transformer103": (5_318_006_016, 8),
  "Transformer415": (21_029_786_880, 32),
  "Transformer1663": (83_876_910_336, 128),
}

CASES = {
  **{f"image.paper.{name}": value for name, value in AMOEBANETS.items()},
  **{f"lm.paper.{name}": value for name, value in TRANSFORMERS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_an_experiment_has_the_weights_and_partitions_of_the_paper(name):
  plan = plan_lib.make(registry.Get(name)().Model())
  weights = sum(cost.param_count for cost in plan.costs)
  assert (weights, len(plan.cells)) == CASES[name]


def test_every_experiment_of_the_paper_is_checked():
  names = [name for name in registry.List() if ".paper." in name]
  assert sorted(names) == sorted(CASES)
