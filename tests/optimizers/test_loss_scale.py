"""A scale of the loss: divided out, halved by overflows, doubled by their absence."""

import numpy as np
import pytest

from tests.optimizers.training import assert_same_bits, random_gradients
from tfpipe.optimizers import SGD, Adam, Learner
from tfpipe.optimizers.loss_scale import FIRST, LEAST, MOST, SCALE, UPDATES

PLAIN = {"optimizer": SGD.Params(), "learning_rate": 0.5}
INF = {"a": [1.0, np.inf]}
GOOD = {"a": [4.0, 8.0]}


class Training:
  """A learner of one weight, with or without a scale of the loss."""

  def __init__(self, tf, *, scales_loss=True, **settings):
    self._tf = tf
    self.learner = Learner.Params().Set(**{**PLAIN, **settings}).Instantiate()
    self.weight = tf.Variable([1.0, 2.0])
    self.learner.create_state({"a": self.weight}, scales_loss=scales_loss)
    self._apply = tf.function(self.learner.apply, autograph=False)

  def step(self, sums, weight=1.0):
    tf = self._tf
    sums = {name: tf.constant(value, tf.float32) for name, value in sums.items()}
    found = self._apply(sums, tf.constant(weight, tf.float32))
    return {name: value.numpy() for name, value in found.items()}

  def values(self):
    state = {name: v.numpy() for name, v in self.learner.state().items()}
    return {"a": self.weight.numpy(), **state}


def test_the_scale_is_divided_out_of_the_sums(tf):
  training = Training(tf, loss_scale=16.0)
  metrics = training.step({"a": [64.0, 128.0]}, weight=4.0)
  # Mean gradients 1 and 2, less half of them.
  np.testing.assert_array_equal(training.weight, [0.5, 1.0])
  assert metrics["loss_scale"] == 16
  assert metrics["grad_norm"] == pytest.approx(5**0.5)
  assert metrics["weight"] == 4


def test_a_power_of_two_changes_no_bit(tf):
  settings = {"optimizer": Adam.Params(), "clip_gradient_norm_to_value": 0.1}
  plain = Training(tf, scales_loss=False, **settings)
  scaled = Training(tf, loss_scale=2.0**12, **settings)
  for sums in random_gradients({"a": [0.0, 0.0]}, 5):
    metrics = scaled.step({"a": sums["a"] * np.float32(2**12)}, weight=3.0)
    del metrics["loss_scale"]
    assert_same_bits(metrics, plain.step(sums, weight=3.0))
  values = scaled.values()
  assert values.pop(SCALE) == 2**12
  assert values.pop(UPDATES) == 5
  assert_same_bits(values, plain.values())


def test_an_overflow_halves_the_scale_and_changes_nothing_else(tf):
  training = Training(tf, loss_scale=8.0, ema_decay=0.9, optimizer=Adam.Params())
  training.step(GOOD)
  before = training.values()
  metrics = training.step(INF)
  assert metrics["skipped"]
  assert metrics["loss_scale"] == 8
  after = training.values()
  assert after.pop(SCALE) == 4
  assert after.pop(UPDATES) == 0
  assert after.pop("learner/consecutive_skips") == 1
  assert_same_bits(after, {name: before[name] for name in after})
  # The next one is divided by the new scale.
  assert training.step(GOOD)["loss_scale"] == 4


def test_good_updates_double_the_scale_and_begin_to_count_anew(tf):
  training = Training(tf, loss_scale=4.0, loss_scale_steps=3)
  steps = [(GOOD, 4), (GOOD, 4), (INF, 4), (GOOD, 2), (GOOD, 2), (GOOD, 2), (GOOD, 4)]
  for sums, scale in steps:
    assert training.step(sums)["loss_scale"] == scale
  values = training.values()
  assert values[SCALE] == 4
  assert values[UPDATES] == 1
  assert values["learner/step"] == 6


def test_the_scale_stays_between_its_bounds(tf):
  training = Training(tf, loss_scale=MOST, loss_scale_steps=1)
  training.step(GOOD)
  assert training.values()[SCALE] == MOST
  training = Training(tf, loss_scale=LEAST, nonfinite="skip")
  training.step(INF)
  assert training.values()[SCALE] == LEAST


def test_a_loss_without_weight_moves_no_scale(tf):
  training = Training(tf, loss_scale=4.0, loss_scale_steps=1)
  for weight in (0.0, np.nan):
    assert training.step(INF, weight=weight)["skipped"]
    assert training.values()[SCALE] == 4
    assert training.values()[UPDATES] == 0


def test_gradients_that_no_scale_makes_finite_stop_the_training(tf):
  training = Training(tf, loss_scale=2.0)
  training.learner.check(training.step(INF))
  metrics = training.step(INF)
  assert metrics["loss_scale"] == LEAST
  with pytest.raises(FloatingPointError, match="1 weights are not finite: a"):
    training.learner.check(metrics)
  # The loss itself was not finite: no scale answers for that.
  metrics = Training(tf).step(INF, weight=np.nan)
  with pytest.raises(FloatingPointError, match="1 weights are not finite: a"):
    training.learner.check(metrics)


def test_overflows_count_for_the_most_skips(tf):
  training = Training(tf, nonfinite="skip", max_skips=1)
  training.learner.check(training.step(INF))
  with pytest.raises(FloatingPointError, match="2 updates in a row were skipped"):
    training.learner.check(training.step(INF))


def test_gathered_sums_have_one_scale(tf):
  training = Training(tf, loss_scale=4.0, loss_scale_steps=1, accumulate_steps=2)
  found = [training.step(sums) for sums in (GOOD, INF, GOOD, GOOD, GOOD, INF)]
  assert [f["loss_scale"] for f in found] == [4, 4, 2, 2, 4, 4]
  assert [f["applied"] for f in found] == [False, False, False, True, False, False]
  assert training.values()[SCALE] == 2


def test_there_is_no_scale_unless_asked_for(tf):
  training = Training(tf, scales_loss=False)
  assert "loss_scale" not in training.step(GOOD)
  assert not {SCALE, UPDATES} & training.values().keys()
  assert Training(tf).values()[SCALE] == FIRST


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"loss_scale": 0.5}, ValueError, r"loss_scale = 0\.5: .* in \[1, 16777216\]"),
    ({"loss_scale": -1.0}, ValueError, r"loss_scale = -1\.0: .* in \[1, 16777216\]"),
    ({"loss_scale": 2.0**25}, ValueError, "loss_scale = 33554432"),
    ({"loss_scale": float("nan")}, ValueError, "loss_scale = nan"),
    ({"loss_scale": "8"}, TypeError, "loss_scale = '8'"),
    ({"loss_scale": True}, TypeError, "loss_scale = True"),
    ({"loss_scale_steps": -1}, ValueError, "loss_scale_steps = -1.*at least 0"),
    ({"loss_scale_steps": 1.5}, TypeError, r"loss_scale_steps = 1\.5"),
  ],
)
def test_scales_without_meaning_are_refused(settings, error, message):
  with pytest.raises(error, match=message):
    Learner.Params().Set(**settings).Instantiate()
