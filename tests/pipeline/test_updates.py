"""Counters move per applied update; a mini-batch that is not finite changes nothing."""

import numpy as np
import pytest

from tests.pipeline import harness, reference, toy
from tests.pipeline.networks import toy_batches, toy_network
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf as lazy_tf
from tfpipe.optimizers import Adam, Exponential, LinearWarmup

DENSE, LOSS = toy.Dense.Params(), toy.Regression.Params()
PLAIN = toy_network(*[DENSE] * 3, LOSS)
NORMED = toy_network(DENSE, toy.Norm.Params(), DENSE, LOSS)

WARMUP, RATE, DECAY = 3, 0.02, 0.5


def _adam(**settings):
  """Adam that warms up over three updates, then halves its rate every two."""
  after = Exponential.Params().Set(decay_rate=DECAY, decay_steps=2)
  return harness.make_learner(
    optimizer=Adam.Params(),
    learning_rate=RATE,
    lr_schedule=LinearWarmup.Params().Set(warmup_steps=WARMUP, after=after),
    **settings,
  )


def _rate(update):
  """Gives the learning rate of update 0, 1, ... in closed form."""
  return RATE * (update / WARMUP if update < WARMUP else DECAY ** (update / 2))


def _numpy_adam(tf, batches):
  """Runs Adam in float64 on gradients of whole mini-batches; gives the weights."""
  plain = reference.Reference(tf, PLAIN)
  first = {name: 0.0 for name in plain.trainable}
  second = dict(first)
  for t, batch in enumerate(batches):
    sums, _, weight = plain.gradients(batch, step=t)
    gradients = reference.mean_gradients(plain, sums, weight)
    factor = min(1.0, harness.CLIP_NORM / reference.global_norm(gradients))
    for name, gradient in gradients.items():
      first[name] = 0.9 * first[name] + 0.1 * factor * gradient
      second[name] = 0.999 * second[name] + 0.001 * (factor * gradient) ** 2
      root = np.sqrt(second[name] / (1 - 0.999 ** (t + 1)))
      move = first[name] / (1 - 0.9 ** (t + 1)) / (root + 1e-8)
      new = plain.weights[name] - _rate(t) * move
      plain.weights[name] = new.astype(np.float32)
  return plain.weights


def _assert_weights_close(state, expected):
  # Adam divides by the root of squares: gradients near 0 amplify rounding.
  for name, value in expected.items():
    np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


def test_adam_with_warm_up_and_decay_equals_one_large_batch(tf):
  batches = toy_batches(6)
  training = harness.start(
    tf, PLAIN, _adam(), num_partitions=2, num_micro_batches=4, name="1f1b"
  )
  updates = [training.step(batch)["update"] for batch in batches]
  rates = [update["learning_rate"] for update in updates]
  np.testing.assert_allclose(rates, [_rate(t) for t in range(6)], rtol=1e-6)
  _assert_weights_close(training.state(), _numpy_adam(tf, batches))


def test_accumulated_calls_are_one_update_of_the_large_batch(tf):
  batches = toy_batches(4, rows=16)
  training = harness.start(
    tf, PLAIN, _adam(accumulate_steps=2), num_partitions=2, num_micro_batches=4
  )
  applied = []
  for batch in batches:
    for half in (slice(0, 8), slice(8, 16)):
      update = training.step({name: a[half] for name, a in batch.items()})["update"]
      applied.append((bool(update["applied"]), float(update["learning_rate"])))
  assert [done for done, _ in applied] == [False, True] * 4
  rates = [rate for done, rate in applied if done]
  np.testing.assert_allclose(rates, [_rate(t) for t in range(4)], rtol=1e-6)
  _assert_weights_close(training.state(), _numpy_adam(tf, batches))
  assert training.state()["learner/step"] == 4
  assert training.pipeline.step.numpy() == 8


@pytest.mark.parametrize(("name", "remat"), [("gpipe", "none"), ("1f1b", "cell")])
def test_nan_in_one_micro_batch_changes_nothing_and_is_located(tf, name, remat):
  training = harness.start(
    tf,
    NORMED,
    harness.make_learner(nonfinite="skip"),
    num_partitions=3,
    num_micro_batches=4,
    name=name,
    remat=remat,
  )
  good, bad, after = toy_batches(3)
  bad["x"][5, 2] = np.nan
  training.step(good)
  before = training.state()
  outputs = training.step(bad)
  state = training.state()
  assert harness.differences(state, before) == ["learner/consecutive_skips"]
  assert state["learner/consecutive_skips"] == 1
  # Row 5 is in the third of four micro-batches of two rows.
  finite = np.isfinite(outputs["micro_batch_losses"]).tolist()
  assert finite == [True, True, False, True]
  update = outputs["update"]
  assert (update["skipped"], update["applied"]) == (True, False)
  assert update["nonfinite"].all()
  assert training.learner.weight_names == tuple(sorted(training.pipeline.trainable()))
  # The next mini-batch trains as if the bad one had not been.
  training.step(after)
  assert training.state()["learner/consecutive_skips"] == 0
  assert training.pipeline.step.numpy() == 3


def test_skipped_mini_batches_leave_no_trace_in_later_updates(tf):
  bad = toy_batches(1)[0]
  bad["target"][0, 0] = np.inf
  states = []
  for inserted in ([], [bad, bad]):
    training = harness.start(
      tf, NORMED, harness.make_learner(nonfinite="skip"), num_micro_batches=2
    )
    first, second = toy_batches(2)
    for batch in [first, *inserted, second]:
      training.step(batch)
    states.append(training.state())
  assert not harness.differences(*states)


class Root(Layer):
  """x + sqrt(w): at w = 0 the value is finite and the gradient is not."""

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((8,), WeightInit.Constant(0.0)))

  def FProp(self, theta, x):
    return x + lazy_tf.sqrt(theta.w)


def test_a_finite_loss_with_a_bad_gradient_stops_with_its_name(tf):
  network = toy_network(toy.Norm.Params(), DENSE, Root.Params(), DENSE, LOSS)
  training = harness.start(tf, network, num_partitions=3, num_micro_batches=2)
  before = training.state()
  outputs = training.step(network.batches(1)[0])
  changed = harness.differences(training.state(), before)
  assert changed == ["learner/consecutive_skips"]
  assert np.isfinite(outputs["micro_batch_losses"]).all()
  names = np.array(training.learner.weight_names)
  assert names[outputs["update"]["nonfinite"]].tolist() == ["layer_2/w"]
  with pytest.raises(FloatingPointError, match=r"1 weights are not finite: layer_2/w"):
    training.learner.check(outputs["update"])


class Offset(Layer):
  """Adds the batch's `offset` to the loss: no gradient knows of it."""

  SIDE_INPUTS = ("offset",)

  def FProp(self, theta, x, side):
    self.AddLoss(lazy_tf.reduce_sum(side.offset))
    return x


def test_a_bad_loss_with_finite_gradients_is_not_learned_from(tf):
  def batches(steps):
    return [{**b, "offset": np.zeros(8, np.float32)} for b in toy_batches(steps)]

  network = toy_network(DENSE, toy.Norm.Params(), Offset.Params(), DENSE, LOSS)
  network = network._replace(batches=batches)
  training = harness.start(
    tf,
    network,
    harness.make_learner(nonfinite="skip"),
    num_partitions=2,
    num_micro_batches=4,
  )
  batch = batches(1)[0]
  before = training.state()
  batch["offset"][7] = np.inf
  update = training.step(batch)["update"]
  assert (update["skipped"], update["applied"]) == (True, False)
  assert not update["nonfinite"].any()
  changed = harness.differences(training.state(), before)
  assert changed == ["learner/consecutive_skips"]
  batch["offset"][7] = 0
  assert training.step(batch)["update"]["applied"]
