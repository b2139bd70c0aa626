"""The learner: what happens once per update, and not at all in a skipped one."""

import math

import numpy as np
import pytest

from tests.optimizers.training import Training, assert_same_bits, random_gradients
from tfpipe.optimizers import (
  SGD,
  Adam,
  Exponential,
  Learner,
  LinearWarmup,
  Momentum,
  RMSProp,
)

PLAIN = {"optimizer": SGD.Params(), "learning_rate": 0.5}
TWO = {"a": [1.0, 2.0], "b": [[3.0]]}


def test_sums_are_divided_once_by_the_loss_weight(tf):
  training = Training(tf, TWO, **PLAIN)
  metrics = training.step({"a": [4.0, 8.0], "b": [[-4.0]]}, weight=4.0)
  np.testing.assert_array_equal(training.weights["a"], [0.5, 1.0])
  np.testing.assert_array_equal(training.weights["b"], [[3.5]])
  assert metrics["weight"] == 4
  assert metrics["applied"]
  assert not metrics["skipped"]
  assert metrics["learning_rate"] == 0.5
  assert metrics["grad_norm"] == pytest.approx(math.sqrt(1 + 4 + 1))


def test_norms_of_the_update_and_of_the_new_weights_are_over_all_weights(tf):
  training = Training(tf, TWO, **PLAIN)
  metrics = training.step({"a": [0.0, 8.0], "b": [[-6.0]]}, weight=4.0)
  # Half of the mean gradients 0, 2 and -1.5; a = [1, 1], b = 3.75.
  assert metrics["update_norm"] == 1.25
  assert metrics["param_norm"] == pytest.approx(math.sqrt(1 + 1 + 3.75**2))
  skipped = training.step({"a": [0.0, math.nan], "b": [[0.0]]})
  assert (skipped["update_norm"], skipped["param_norm"]) == (0, 0)


def test_norms_that_are_not_asked_for_are_0_and_change_no_bit(tf):
  trainings = [Training(tf, TWO, **PLAIN) for _ in range(2)]
  learner = trainings[0].learner
  trainings[0].function = tf.function(
    lambda sums, weight: learner.apply(sums, weight, tf.constant(False))
  )
  gradient = random_gradients(TWO, 1)[0]
  metrics = [training.step(gradient) for training in trainings]
  names = ("update_norm", "param_norm")
  assert [metrics[0][name] for name in names] == [0, 0]
  assert all(metrics[1][name] > 0 for name in names)
  assert_same_bits(trainings[0].values(), trainings[1].values())


def test_clipping_scales_all_weights_by_one_factor(tf):
  training = Training(tf, TWO, clip_gradient_norm_to_value=1.0, **PLAIN)
  # Mean gradients 3 and 4: norm 5.
  metrics = training.step({"a": [6.0, 0.0], "b": [[8.0]]}, weight=2.0)
  assert metrics["grad_norm"] == 5
  assert metrics["clip_factor"] == pytest.approx(0.2)
  np.testing.assert_allclose(training.weights["a"], [1 - 0.5 * 0.6, 2], rtol=1e-6)
  np.testing.assert_allclose(training.weights["b"], [[3 - 0.5 * 0.8]], rtol=1e-6)


def test_clipping_leaves_a_smaller_gradient_alone(tf):
  gradient = random_gradients(TWO, 1)[0]
  clipped = Training(tf, TWO, clip_gradient_norm_to_value=100.0, **PLAIN)
  free = Training(tf, TWO, **PLAIN)
  assert clipped.step(gradient)["clip_factor"] == 1
  free.step(gradient)
  assert_same_bits(clipped.values(), free.values())


def test_l2_term_is_added_once_before_clipping_to_the_named_weights(tf):
  training = Training(
    tf, TWO, ("b",), weight_decay_l2=0.5, clip_gradient_norm_to_value=1.0, **PLAIN
  )
  # Mean gradients [1, 0] and -1.5 + 0.5·3 = 0, whatever the loss weight is.
  metrics = training.step({"a": [8.0, 0.0], "b": [[-12.0]]}, weight=8.0)
  assert metrics["l2_loss"] == 0.5 * 3**2 / 2
  assert metrics["grad_norm"] == 1
  np.testing.assert_array_equal(training.weights["a"], [0.5, 2])
  np.testing.assert_array_equal(training.weights["b"], [[3]])


def test_l2_term_reaches_the_momentum_unlike_decoupled_decay(tf):
  params = Momentum.Params()
  training = Training(
    tf, TWO, ("a",), weight_decay_l2=0.1, optimizer=params, learning_rate=1.0
  )
  training.step({"a": [0.0, 0.0], "b": [[0.0]]})
  np.testing.assert_allclose(
    training.values()["slots/a/momentum"], [0.1, 0.2], rtol=1e-6
  )
  assert training.values()["slots/b/momentum"] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_nonfinite_gradient_is_named_and_changes_nothing(tf, bad):
  """1e30 is finite but its square is not, so there's no norm to clip by."""
  training = Training(tf, TWO, ("a",), weight_decay_l2=0.1, ema_decay=0.5, **PLAIN)
  before = training.values()
  metrics = training.step({"a": [1.0, 1.0], "b": [[bad]]}, weight=2.0)
  assert metrics["skipped"]
  assert not metrics["applied"]
  assert metrics["clip_factor"] == 0
  assert metrics["nonfinite"].tolist() == [False, True]
  after = training.values()
  assert after.pop("learner/consecutive_skips") == 1
  del before["learner/consecutive_skips"]
  assert_same_bits(after, before)
  with pytest.raises(FloatingPointError, match="1 weights are not finite: b"):
    training.learner.check(metrics)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_unusable_loss_weight_changes_nothing_and_is_reported(tf, weight):
  training = Training(tf, TWO, **PLAIN)
  before = training.values()
  metrics = training.step({"a": [0.0, 0.0], "b": [[0.0]]}, weight=weight)
  assert metrics["skipped"]
  assert metrics["consecutive_skips"] == 1
  assert not metrics["nonfinite"].any()
  assert np.isfinite(metrics["grad_norm"])
  after = training.values()
  del before["learner/consecutive_skips"], after["learner/consecutive_skips"]
  assert_same_bits(after, before)
  # The stop policy is about non-finite gradients.
  training.learner.check(metrics)


def test_skips_in_a_row_are_counted_and_limited(tf):
  training = Training(tf, TWO, nonfinite="skip", max_skips=2, **PLAIN)
  good = {"a": [1.0, 1.0], "b": [[1.0]]}
  bad = {"a": [1.0, np.nan], "b": [[1.0]]}
  for gradient, skips in [(bad, 1), (bad, 2), (good, 0), (bad, 1), (bad, 2)]:
    metrics = training.step(gradient)
    assert metrics["consecutive_skips"] == skips
    training.learner.check(metrics)
  with pytest.raises(FloatingPointError, match=r"3 updates in a row.*max_skips is 2"):
    training.learner.check(training.step(good, weight=0.0))
  assert training.values()["learner/step"] == 1


def test_moving_averages_follow_applied_updates_only(tf):
  training = Training(tf, {"a": 1.0}, ema_decay=0.9, **PLAIN)
  average = weight = 1.0
  for gradient in (2.0, np.nan, 4.0):
    training.step({"a": gradient})
    if np.isfinite(gradient):
      weight -= 0.5 * gradient
      average = 0.9 * average + 0.1 * weight
    assert training.values()["ema/a"] == pytest.approx(average)


def test_ramp_shortens_the_average_of_the_first_updates(tf):
  training = Training(tf, {"a": 0.0}, ema_decay=0.25, ema_ramp=True, **PLAIN)
  average = weight = 0.0
  # (1 + n)/(10 + n) for n = 1, 2 and then 0.25, which is reached at n = 2.
  for decay in (2 / 11, 0.25, 0.25):
    training.step({"a": 2.0})
    weight -= 1.0
    average = decay * average + (1 - decay) * weight
    assert training.values()["ema/a"] == pytest.approx(average)


def test_accumulated_calls_equal_one_large_batch_bit_for_bit(tf):
  """Adam's bias corrections, warm-up and decay advance once per update."""
  decay = Exponential.Params().Set(decay_rate=0.5, decay_steps=1)
  settings = {
    "optimizer": Adam.Params(),
    "learning_rate": 0.1,
    "lr_schedule": LinearWarmup.Params().Set(warmup_steps=2, after=decay),
    "clip_gradient_norm_to_value": 0.5,
    "weight_decay_l2": 0.01,
    "ema_decay": 0.99,
    "ema_ramp": True,
  }
  parts = Training(tf, TWO, ("a", "b"), accumulate_steps=4, **settings)
  whole = Training(tf, TWO, ("a", "b"), **settings)
  gradients = random_gradients(TWO, 20)
  rates = []
  for update in range(5):
    window = gradients[4 * update : 4 * update + 4]
    for call, gradient in enumerate(window):
      metrics = parts.step(gradient, weight=1 + call)
      assert metrics["applied"] == (call == 3)
      assert not metrics["skipped"]
    sums = {}
    for name in TWO:
      sums[name] = window[0][name] + window[1][name] + window[2][name] + window[3][name]
    assert_same_bits(metrics, whole.step(sums, weight=10))
    rates.append(metrics["learning_rate"])
  np.testing.assert_allclose(rates, [0, 0.05, 0.025, 0.0125, 0.00625], rtol=1e-6)
  values = parts.values()
  for name in ("accumulators/a", "accumulators/b"):
    assert not values.pop(name).any()
  assert values.pop("learner/accumulated_calls") == 0
  assert values.pop("learner/accumulated_weight") == 0
  assert_same_bits(values, whole.values())
  assert values["learner/step"] == 5


def test_nonfinite_part_drops_its_whole_window_and_no_other(tf):
  settings = {"accumulate_steps": 2, "ema_decay": 0.9, **PLAIN}
  training, undisturbed = Training(tf, TWO, **settings), Training(tf, TWO, **settings)
  bad = {"a": [np.inf, 0.0], "b": [[0.0]]}
  good = random_gradients(TWO, 3)
  assert not training.step(bad)["skipped"]
  metrics = training.step(good[0])
  assert metrics["skipped"]
  assert metrics["nonfinite"].tolist() == [True, False]
  for gradient in good[1:]:
    training.step(gradient)
    undisturbed.step(gradient)
  assert_same_bits(training.values(), undisturbed.values())


def test_accumulating_call_changes_no_weight_slot_or_average(tf):
  training = Training(
    tf, TWO, accumulate_steps=3, ema_decay=0.9, optimizer=RMSProp.Params()
  )
  before = training.values()
  metrics = training.step({"a": [1.0, 2.0], "b": [[3.0]]}, weight=5.0)
  assert metrics["learning_rate"] == pytest.approx(1e-3)
  del metrics["learning_rate"]
  assert not any(np.any(value) for value in metrics.values())
  after = training.values()
  np.testing.assert_array_equal(after.pop("accumulators/a"), [1, 2])
  assert after.pop("accumulators/b") == 3
  assert after.pop("learner/accumulated_calls") == 1
  assert after.pop("learner/accumulated_weight") == 5
  assert_same_bits(after, {name: before[name] for name in after})


def test_gradients_of_another_float_type_are_taken_in_float32(tf):
  training = Training(tf, {"a": [1.0, 2.0]}, **PLAIN)
  training.function(
    {"a": tf.constant([1.0, 2.0], tf.bfloat16)}, tf.constant(2, tf.int64)
  )
  np.testing.assert_array_equal(training.weights["a"], [0.75, 1.5])


def test_step_is_traced_once(tf):
  training = Training(tf, TWO, accumulate_steps=2, **PLAIN)
  for _ in range(4):
    training.step({"a": [1.0, 2.0], "b": [[3.0]]})
  assert training.function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
  ("gradients", "message"),
  [
    ({"a": [1.0, 1.0], "b": None}, "weight 'b' has no gradient"),
    ({"a": [1.0, 1.0]}, "weight 'b' has no gradient"),
    ({"a": [1.0], "b": [[1.0]]}, r"gradient of 'a' has shape \(1,\).*\(2,\)"),
    ({"a": [1.0, 1.0], "b": [[1.0]], "bb": [1.0]}, "unknown weight 'bb'.*mean 'b'"),
  ],
)
def test_gradients_that_do_not_match_are_refused_by_name(tf, gradients, message):
  training = Training(tf, TWO, **PLAIN)
  sums = {
    name: None if value is None else tf.constant(value)
    for name, value in gradients.items()
  }
  with pytest.raises(ValueError, match=message):
    training.learner.apply(sums, tf.constant(1.0))


def test_weights_that_a_learner_cannot_train_are_refused_by_name(tf):
  learner = Learner.Params().Set(weight_decay_l2=0.1).Instantiate()
  shared = tf.Variable([1.0])
  half = tf.Variable(tf.constant([1.0], tf.float16))
  growing = tf.Variable([1.0], shape=[None])
  with pytest.raises(ValueError, match="no weights"):
    learner.create_state({})
  with pytest.raises(ValueError, match="'in' and 'out' are one variable"):
    learner.create_state({"in": shared, "out": shared})
  with pytest.raises(ValueError, match="'h' is float16"):
    learner.create_state({"h": half})
  with pytest.raises(ValueError, match="'g' has axes of unknown size"):
    learner.create_state({"g": growing})
  with pytest.raises(ValueError, match=r"no such weight: 'kernal'.*mean 'kernel'"):
    learner.create_state({"kernel": shared}, ["kernal"])
  with pytest.raises(ValueError, match=r"weight_decay_l2 = 0\.1 has no effect"):
    learner.create_state({"kernel": shared})
  with pytest.raises(ValueError, match="call create_state before apply"):
    learner.apply({"kernel": tf.constant([1.0])}, tf.constant(1.0))
  learner.create_state({"kernel": shared}, ["kernel"])
  with pytest.raises(ValueError, match="create_state was called before"):
    learner.create_state({"kernel": shared}, ["kernel"])


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"nonfinite": "skp"}, ValueError, "nonfinite = 'skp'.*mean 'skip'"),
    ({"learning_rate": -1.0}, ValueError, r"learning_rate = -1\.0"),
    ({"clip_gradient_norm_to_value": -1}, ValueError, "clip_gradient_norm_to_value"),
    ({"ema_decay": 1.0}, ValueError, r"ema_decay = 1\.0"),
    ({"ema_ramp": True}, ValueError, "ema_ramp = True has no effect"),
    ({"max_skips": -1}, ValueError, "max_skips = -1.*at least 0"),
    ({"accumulate_steps": 0}, ValueError, "accumulate_steps = 0.*at least 1"),
    ({"accumulate_steps": 1.5}, TypeError, r"accumulate_steps = 1\.5"),
    ({"optimizer": None}, TypeError, "optimizer = None.*derived from Optimizer"),
    ({"lr_schedule": SGD.Params()}, TypeError, "derived from LearningRateSchedule"),
  ],
)
def test_settings_without_meaning_are_refused(settings, error, message):
  with pytest.raises(error, match=message):
    Learner.Params().Set(**settings).Instantiate()


@pytest.mark.parametrize("packed", [False, True])
def test_an_update_runs_though_nobody_asks_for_what_it_tells(tf, packed):
  training = Training(tf, TWO, **PLAIN)
  sums = {name: tf.ones_like(weight) for name, weight in training.weights.items()}

  @tf.function(autograph=False)
  def step():
    training.learner.apply(sums, tf.constant(1.0), packed=packed)

  step()
  np.testing.assert_array_equal(training.weights["a"], [0.5, 1.5])
  np.testing.assert_array_equal(training.weights["b"], [[2.5]])
  assert int(training.learner.state()["learner/step"]) == 1


def test_what_reads_weights_after_an_update_in_the_same_function_sees_it(tf):
  training = Training(tf, TWO, **PLAIN)
  weights = training.weights

  @tf.function(autograph=False)
  def two_steps():
    values = []
    for _ in range(2):
      sums = {name: 2.0 * weight.read_value() for name, weight in weights.items()}
      training.learner.apply(sums, tf.constant(2.0))
      values.append({name: weight.read_value() for name, weight in weights.items()})
    return values

  # The mean gradient of a weight is itself, and the rate one half.
  found = two_steps()
  for value, share in zip(found, (0.5, 0.25), strict=True):
    np.testing.assert_array_equal(value["a"], [share, 2 * share])
    np.testing.assert_array_equal(value["b"], [[3 * share]])


def test_packed_updates_of_devices_do_not_wait_for_each_other(tf):
  devices = {name: f"/device:CPU:{place}" for place, name in enumerate(TWO)}
  training = Training(tf, TWO, devices=devices, packed=True, **PLAIN)
  sums = {name: tf.TensorSpec(np.shape(value)) for name, value in TWO.items()}
  graph = training.function.get_concrete_function(sums, tf.TensorSpec([])).graph
  updates = {
    op.device[-1]: op
    for op in graph.get_operations()
    if op.type == "StatefulPartitionedCall"
  }
  assert updates.keys() == {"0", "1"}
  for device, op in updates.items():
    before, other = [op], updates["1" if device == "0" else "0"]
    for own in before:
      before += [*own.control_inputs, *(tensor.op for tensor in own.inputs)]
    # Both need the norm of all gradients, from the calls before these.
    assert other not in before
