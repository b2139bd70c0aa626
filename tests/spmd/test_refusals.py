"""What the program of all devices cannot run is refused by name, before it is built."""

from __future__ import annotations

import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS, toy_network
from tests.pipeline.toy import Dense, Regression
from tests.spmd import harness as spmd
from tfpipe import schedule
from tfpipe.schedule.ticks import table
from tfpipe.spmd.program import Program

NETWORK = NETWORKS["tied"]


def test_float16(tf):
  with pytest.raises(ValueError, match="compute_dtype='float16': must be one of"):
    spmd.make_program(
      tf, NETWORK, num_partitions=2, num_micro_batches=2, compute_dtype="float16"
    )


def test_micro_batches_that_do_not_divide_the_batch(tf):
  with pytest.raises(ValueError, match="num_micro_batches=3 does not divide"):
    spmd.make_program(tf, NETWORK, num_partitions=2, num_micro_batches=3)


@pytest.mark.parametrize(
  ("stages", "number", "remat", "match"),
  [
    (3, 2, True, "has 3 stages and 2 micro-batches.*cut into 2 and 2"),
    (2, 4, True, "has 2 stages and 4 micro-batches.*cut into 2 and 2"),
    (2, 2, False, "does not recompute cells, which is not pipeline.remat='cell'"),
  ],
)
def test_a_schedule_that_does_not_fit(tf, stages, number, remat, match):
  program = spmd.make_program(tf, NETWORK, num_partitions=2, num_micro_batches=2)
  ticks = table(schedule.make("gpipe", stages, number, remat))
  with pytest.raises(ValueError, match=match):
    Program(program.network, ticks, harness.make_learner())


def test_no_pipeline(tf):
  program = spmd.make_program(tf, NETWORK, num_partitions=2, num_micro_batches=2)
  with pytest.raises(ValueError, match="num_pipelines=0: must be at least 1"):
    Program(program.network, program.ticks, harness.make_learner(), 0)


def test_a_weight_that_the_loss_does_not_depend_on(tf):
  from tests.pipeline.toy_borders import StopGradient

  network = toy_network(Dense.Params(), StopGradient.Params(), Regression.Params())
  with pytest.raises(ValueError, match="'layer_0/w' has no gradient"):
    spmd.make_program(tf, network, num_partitions=2, num_micro_batches=2)
