"""What every optimizer must do in the hands of a learner: one row for each."""

import numpy as np
import pytest

from tests.optimizers.training import Training, assert_same_bits, random_gradients
from tfpipe.optimizers import SGD, Adafactor, Adam, AdamW, Momentum, RMSProp

# Params, learning rate at which 100 steps reach the minimum of a parabola, slots.
OPTIMIZERS = {
  "sgd": (SGD.Params(), 0.2, []),
  "momentum": (Momentum.Params().Set(momentum=0.5), 0.2, ["momentum"]),
  "nesterov": (Momentum.Params().Set(nesterov=True), 0.05, ["momentum"]),
  "rmsprop": (
    RMSProp.Params().Set(momentum=0.5, epsilon=1.0),
    0.2,
    ["mean_square", "momentum"],
  ),
  "rmsprop without momentum": (
    RMSProp.Params().Set(epsilon=1.0),
    0.2,
    ["mean_square"],
  ),
  "adam": (Adam.Params().Set(beta1=0.5), 0.1, ["m", "v"]),
  "adamw": (AdamW.Params().Set(beta1=0.5, weight_decay=1e-4), 0.1, ["m", "v"]),
  "adafactor": (
    Adafactor.Params().Set(relative_step=True),
    0.3,
    ["column", "row"],
  ),
}
WEIGHTS = {
  "table": np.linspace(-1, 1, 12).reshape(4, 3),
  "matrix": np.linspace(0, 1, 10).reshape(5, 2),
}
SETTINGS = {"ema_decay": 0.9, "accumulate_steps": 2}


@pytest.fixture(params=OPTIMIZERS)
def row(request):
  return OPTIMIZERS[request.param]


def test_optimizer_converges_on_a_parabola(tf, row):
  params, rate, _ = row
  training = Training(tf, WEIGHTS, optimizer=params, learning_rate=rate)
  target = {name: 0.5 - 2 * value for name, value in WEIGHTS.items()}

  def loss():
    return sum(
      np.sum((weight.numpy() - target[name]) ** 2)
      for name, weight in training.weights.items()
    )

  first = loss()
  for _ in range(100):
    training.step(
      {name: weight.numpy() - target[name] for name, weight in training.weights.items()}
    )
  assert loss() < 1e-3 * first


def test_state_has_the_names_shapes_and_values_of_the_specs(tf, row):
  params, rate, slots = row
  training = Training(tf, WEIGHTS, optimizer=params, learning_rate=rate, **SETTINGS)
  state = training.learner.state()
  names = {f"slots/{name}/{slot}" for name in WEIGHTS for slot in slots}
  names |= {f"{kind}/{name}" for name in WEIGHTS for kind in ("ema", "accumulators")}
  counters = {"step", "consecutive_skips", "accumulated_calls", "accumulated_weight"}
  assert set(state) == names | {f"learner/{counter}" for counter in counters}
  for name, weight in training.weights.items():
    for entry, spec in training.learner.state_specs(name, weight.shape).items():
      value = np.full(spec.shape, spec.initial)
      if spec.initial is None:
        value = weight.numpy()
      np.testing.assert_array_equal(state[entry].numpy(), value)
      assert state[entry].numpy().size == spec.size
      assert state[entry].dtype == tf.float32
  shapes = {name: value.shape for name, value in WEIGHTS.items()}
  for kind, num_bytes in training.learner.state_bytes(shapes).items():
    variables = [state[entry] for entry in state if entry.startswith(f"{kind}/")]
    assert num_bytes == sum(variable.numpy().nbytes for variable in variables)


def test_state_copied_in_an_accumulation_window_goes_on_bit_for_bit(tf, row):
  params, rate, _ = row
  settings = SETTINGS | {"optimizer": params, "learning_rate": rate}
  gradients = random_gradients(WEIGHTS, 6)
  straight = Training(tf, WEIGHTS, **settings)
  for step, gradient in enumerate(gradients):
    if step == 3:
      saved = straight.values()
    straight.step(gradient, weight=1 + step)
  resumed = Training(
    tf, {name: value * 0 for name, value in WEIGHTS.items()}, **settings
  )
  for name, variable in resumed.variables().items():
    variable.assign(saved[name])
  for step in range(3, 6):
    resumed.step(gradients[step], weight=1 + step)
  assert_same_bits(resumed.values(), straight.values())
  assert straight.values()["learner/step"] == 3


def test_sparse_gradient_with_repeated_rows_equals_the_dense_one(tf, row):
  params, rate, _ = row
  settings = {
    "optimizer": params,
    "learning_rate": rate,
    "clip_gradient_norm_to_value": 1.0,
  }
  rows, ids = np.arange(12.0, dtype=np.float32).reshape(4, 3), [2, 0, 2, 2]
  dense_rows = np.zeros((4, 3), np.float32)
  np.add.at(dense_rows, ids, rows)
  matrix = np.ones((5, 2), np.float32)
  sparse, dense = Training(tf, WEIGHTS, **settings), Training(tf, WEIGHTS, **settings)
  slices = tf.IndexedSlices(
    tf.constant(rows), tf.constant(ids, tf.int64), tf.constant([4, 3], tf.int64)
  )
  for _ in range(3):
    metrics = sparse.step({"table": slices, "matrix": matrix})
    assert_same_bits(metrics, dense.step({"table": dense_rows, "matrix": matrix}))
  expected = np.sqrt(np.sum(dense_rows**2) + 10)
  assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-6)
  assert_same_bits(sparse.values(), dense.values())


def test_skipped_update_leaves_every_bit(tf, row):
  params, rate, _ = row
  settings = {"optimizer": params, "learning_rate": rate, "ema_decay": 0.9}
  training = Training(tf, WEIGHTS, clip_gradient_norm_to_value=1.0, **settings)
  undisturbed = Training(tf, WEIGHTS, clip_gradient_norm_to_value=1.0, **settings)
  good, bad, last = random_gradients(WEIGHTS, 3)
  bad["table"][1, 1] = np.nan
  training.step(good)
  undisturbed.step(good)
  before = training.values()
  metrics = training.step(bad)
  assert not metrics["applied"]
  after = training.values()
  assert after.pop("learner/consecutive_skips") == 1
  assert before.pop("learner/consecutive_skips") == 0
  assert_same_bits(after, before)
  training.step(last)
  undisturbed.step(last)
  assert_same_bits(training.values(), undisturbed.values())


def test_variables_packed_by_layer_give_the_same_bits(tf, row):
  params, rate, _ = row
  values = {f"{layer}/{name}": v for layer in "xyz" for name, v in WEIGHTS.items()}
  devices = {name: f"/device:CPU:{int(name[0] == 'z')}" for name in values}
  settings = {"optimizer": params, "learning_rate": rate, "weight_decay_l2": 0.1}
  trainings = [
    Training(tf, values, ("x/table",), devices, packed=packed, **settings, **SETTINGS)
    for packed in (False, True)
  ]
  gradients = random_gradients(values, 5)
  gradients[2]["y/matrix"][0, 0] = np.nan  # this update and its sums are dropped
  for gradient in gradients:
    found = [training.step(gradient) for training in trainings]
    assert_same_bits(found[1], found[0])
  assert_same_bits(trainings[1].values(), trainings[0].values())
