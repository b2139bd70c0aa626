"""Schedules against values worked out by hand and closed forms."""

import math

import numpy as np
import pytest

from tfpipe.optimizers import (
  Constant,
  Cosine,
  Exponential,
  LinearWarmup,
  PiecewiseConstant,
  Transformer,
)

EXPONENTIAL = Exponential.Params().Set(decay_rate=0.5, decay_steps=10)
STAIRS = Exponential.Params().Set(
  decay_rate=0.5, decay_steps=2.5, staircase=True, floor=0.2
)
WARMUP = LinearWarmup.Params().Set(warmup_steps=4, after=STAIRS)
PIECES = PiecewiseConstant.Params().Set(boundaries=[2, 5], values=[1.0, 0.1, 0.01])
SCHEDULES = [
  (Constant.Params().Set(scale=0.3), {0: 0.3, 7: 0.3}),
  (EXPONENTIAL, {0: 1.0, 5: math.sqrt(0.5), 10: 0.5, 30: 0.125}),
  # Stairs at 2.5, 5 and 7.5; from 7.5 on 0.125 is below the floor.
  (STAIRS, {0: 1.0, 2: 1.0, 3: 0.5, 4: 0.5, 5: 0.25, 7: 0.25, 8: 0.2, 1000: 0.2}),
  # The decay isn't put off by the warm-up.
  (WARMUP, {0: 0.0, 1: 0.25, 3: 0.75, 4: 0.5, 5: 0.25}),
  (
    Cosine.Params().Set(total_steps=8, floor=0.1),
    {0: 1.0, 2: 0.1 + 0.45 * (1 + math.sqrt(0.5)), 4: 0.55, 8: 0.1, 99: 0.1},
  ),
  (PIECES, {0: 1.0, 1: 1.0, 2: 0.1, 4: 0.1, 5: 0.01, 50: 0.01}),
  # Equation 3 of the paper for steps 1, 4 (its maximum) and 16.
  (
    Transformer.Params().Set(model_dim=16, warmup_steps=4),
    {0: 0.25 * 0.125, 3: 0.25 * 0.5, 15: 0.25 * 0.25},
  ),
]


@pytest.mark.parametrize(("params", "expected"), SCHEDULES)
def test_schedule_has_the_expected_values(params, expected):
  schedule = params.Instantiate()
  for step, value in expected.items():
    assert schedule.value(step) == pytest.approx(value, rel=1e-12), step
  np.testing.assert_allclose(
    schedule.value(np.array(list(expected))), list(expected.values()), rtol=1e-12
  )


@pytest.mark.parametrize(("params", "expected"), SCHEDULES)
def test_schedule_of_a_tensor_agrees_with_that_of_a_number(tf, params, expected):
  schedule = params.Instantiate()
  steps = tf.constant(list(expected), tf.int64)
  values = tf.function(schedule.value)(steps)
  assert values.dtype == tf.float32
  np.testing.assert_allclose(values, list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize(
  ("params", "message"),
  [
    (Exponential.Params().Set(decay_rate=1.5), r"Exponential\.decay_rate = 1\.5.*\(0"),
    (Exponential.Params().Set(decay_steps=0), r"decay_steps = 0.*\(0, inf\)"),
    (Cosine.Params().Set(total_steps=0), r"total_steps = 0.*at least 1"),
    (Cosine.Params().Set(floor=math.nan), r"floor = nan"),
    (LinearWarmup.Params().Set(warmup_steps=0), "warmup_steps = 0"),
    (PIECES.Copy().Set(boundaries=[5, 2]), r"boundaries = \[5, 2\].*increase"),
    (PIECES.Copy().Set(boundaries=[2]), "1 boundaries need 2 values, not 3"),
    (PIECES.Copy().Set(boundaries=[0, 2]), r"boundaries\[0\] = 0.*\(0, inf\)"),
    (PIECES.Copy().Set(values=[1.0, -1.0, 0.0]), r"values\[1\] = -1\.0.*\[0, inf\)"),
    (PIECES.Copy().Set(values=[1.0, 0.1, 1e39]), r"values\[2\] = 1e\+39.*becomes inf"),
  ],
)
def test_schedule_refuses_values_out_of_range(params, message):
  with pytest.raises(ValueError, match=message):
    params.Instantiate()


@pytest.mark.parametrize(
  ("params", "message"),
  [
    (Exponential.Params().Set(staircase=1), "staircase = 1: .*True or False"),
    (LinearWarmup.Params().Set(warmup_steps=2.5), "warmup_steps = 2.5.*an integer"),
    (PIECES.Copy().Set(boundaries=[2, "5"]), r"boundaries\[1\] = '5'.*a number"),
    (PIECES.Copy().Set(boundaries=5), r"boundaries = 5: .*a list of numbers in \(0"),
    (PIECES.Copy().Set(values=[1.0, True, 0.0]), r"values\[1\] = True.*a number"),
    (PIECES.Copy().Set(values=None), r"values = None: .*a list of numbers in \[0"),
    (Constant.Params().Set(scale=True), r"Constant\.scale = True.*a number"),
    (LinearWarmup.Params().Set(after=None), "after = None.*LearningRateSchedule"),
  ],
)
def test_schedule_refuses_values_of_another_type(params, message):
  with pytest.raises(TypeError, match=message):
    params.Instantiate()
