"""Update rules against NumPy in float64, TensorFlow 1 and Keras, over several steps."""

import numpy as np
import pytest

from tests.optimizers.training import random_gradients
from tfpipe.optimizers import SGD, Adafactor, Adam, AdamW, Momentum, RMSProp

SHAPES = {"vector": (5,), "matrix": (4, 3), "kernel": (2, 2, 3, 4), "scalar": ()}
STEPS = 6
# Float32 against float64 over STEPS updates.
RTOL, ATOL = 1e-5, 1e-6


def learning_rate(step):
  """A rate that changes, since it tells the forms of momentum apart."""
  return 0.1 / (1 + step)


def sgd(w, gradients):
  for step, g in enumerate(gradients):
    w = w - learning_rate(step) * g
  return w


def momentum(w, gradients, nesterov=False):
  velocity = np.zeros_like(w)
  for step, g in enumerate(gradients):
    velocity = 0.9 * velocity + g
    direction = g + 0.9 * velocity if nesterov else velocity
    w = w - learning_rate(step) * direction
  return w


def rmsprop(w, gradients, kept=0.0):
  square, velocity = np.ones_like(w), np.zeros_like(w)
  for step, g in enumerate(gradients):
    square = 0.8 * square + 0.2 * g * g
    velocity = kept * velocity + learning_rate(step) * g / (square + 0.1) ** 0.5
    w = w - velocity
  return w


def adam(w, gradients, weight_decay=0.0):
  first, second = np.zeros_like(w), np.zeros_like(w)
  for step, g in enumerate(gradients):
    t, old = step + 1, w
    first = 0.8 * first + 0.2 * g
    second = 0.95 * second + 0.05 * g**2
    unbiased = second / (1 - 0.95**t)
    w = w - learning_rate(step) * first / (1 - 0.8**t) / (np.sqrt(unbiased) + 1e-3)
    w = w - learning_rate(step) * weight_decay * old
  return w


def rms(x):
  return np.sqrt(np.mean(x**2))


def adafactor(w, gradients, relative=False, scaled=False, threshold=1.0):
  second = np.zeros_like(w)
  row, column = np.zeros(w.shape[:-1]), np.zeros(w.shape[:-2] + w.shape[-1:])
  for step, g in enumerate(gradients):
    t = step + 1
    beta = 1 - t**-0.8
    if w.ndim >= 2:
      # Algorithm 4 with sums in place of means.
      row = beta * row + (1 - beta) * np.sum(g**2 + 1e-30, axis=-1)
      column = beta * column + (1 - beta) * np.sum(g**2 + 1e-30, axis=-2)
      total = np.sum(row, axis=-1)[..., None, None]
      second = row[..., :, None] * column[..., None, :] / total
    else:
      second = beta * second + (1 - beta) * (g**2 + 1e-30)
    u = g / np.sqrt(second)
    u = u / max(1.0, rms(u) / threshold)
    rate = min(learning_rate(step), t**-0.5) if relative else learning_rate(step)
    w = w - rate * (max(rms(w), 1e-3) if scaled else 1.0) * u
  return w


ADAM = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
RULES = [
  (SGD.Params(), sgd, {}),
  (Momentum.Params(), momentum, {}),
  (Momentum.Params().Set(nesterov=True), momentum, {"nesterov": True}),
  (RMSProp.Params().Set(decay=0.8, epsilon=0.1), rmsprop, {}),
  (
    RMSProp.Params().Set(decay=0.8, epsilon=0.1, momentum=0.7),
    rmsprop,
    {"kept": 0.7},
  ),
  (Adam.Params().Set(**ADAM), adam, {}),
  (AdamW.Params().Set(weight_decay=0.3, **ADAM), adam, {"weight_decay": 0.3}),
  (Adafactor.Params(), adafactor, {}),
  (Adafactor.Params().Set(relative_step=True), adafactor, {"relative": True}),
  (Adafactor.Params().Set(scale_parameter=True), adafactor, {"scaled": True}),
  (Adafactor.Params().Set(clip_threshold=0.5), adafactor, {"threshold": 0.5}),
]


def run(tf, optimizer, weight, gradients, rate=learning_rate):
  """Applies a rule to one weight; returns the weight and its slots."""
  slots = {
    name: tf.fill(spec.shape, spec.initial)
    for name, spec in optimizer.slot_specs(weight.shape).items()
  }
  weight = tf.constant(weight)
  for step, gradient in enumerate(gradients):
    shapes = {name: slot.shape for name, slot in slots.items()}
    weight, slots = optimizer.update(
      weight,
      tf.constant(gradient),
      slots,
      tf.constant(rate(step), tf.float32),
      tf.constant(step + 1, tf.float32),
    )
    assert {name: slot.shape for name, slot in slots.items()} == shapes
  return weight.numpy(), {name: slot.numpy() for name, slot in slots.items()}


@pytest.mark.parametrize(("params", "reference", "settings"), RULES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rule_follows_its_formula(tf, params, reference, settings, shape):
  weight = np.random.default_rng(1).normal(size=shape).astype(np.float32)
  gradients = [g["w"] for g in random_gradients({"w": weight}, STEPS)]
  actual, _ = run(tf, params.Instantiate(), weight, gradients)
  expected = reference(
    weight.astype(np.float64), [g.astype(np.float64) for g in gradients], **settings
  )
  np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL)


def oracles(tf):
  train, keras = tf.compat.v1.train, tf.keras.optimizers
  return [
    (SGD.Params(), train.GradientDescentOptimizer(0.1)),
    (Momentum.Params(), train.MomentumOptimizer(0.1, 0.9)),
    (
      Momentum.Params().Set(nesterov=True),
      train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    ),
    (SGD.Params(), keras.SGD(0.1)),
    (Momentum.Params(), keras.SGD(0.1, momentum=0.9)),
    (
      RMSProp.Params().Set(momentum=0.9, epsilon=1.0),
      train.RMSPropOptimizer(0.1, decay=0.9, momentum=0.9, epsilon=1.0),
    ),
    (
      RMSProp.Params().Set(decay=0.7, epsilon=0.1),
      train.RMSPropOptimizer(0.1, decay=0.7, epsilon=0.1),
    ),
    # Keras adds epsilon before the bias correction: equal for a small one.
    (Adam.Params(), keras.Adam(0.1, epsilon=1e-8)),
    (AdamW.Params(), keras.AdamW(0.1, weight_decay=0.01, epsilon=1e-8)),
  ]


@pytest.mark.parametrize("index", range(9))
def test_rule_agrees_with_tensorflow_1_or_keras(tf, index):
  params, oracle = oracles(tf)[index]
  weight = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
  gradients = [g["w"] for g in random_gradients({"w": weight}, STEPS)]
  variable = tf.Variable(weight)
  for gradient in gradients:
    oracle.apply_gradients([(tf.constant(gradient), variable)])
  actual, _ = run(tf, params.Instantiate(), weight, gradients, lambda step: 0.1)
  np.testing.assert_allclose(actual, variable.numpy(), rtol=3e-5, atol=3e-6)


def test_adafactor_keeps_rows_and_columns_of_the_last_two_axes():
  optimizer = Adafactor.Params().Instantiate()

  def shapes(shape):
    return {name: spec.shape for name, spec in optimizer.slot_specs(shape).items()}

  assert shapes((1000, 300)) == {"row": (1000,), "column": (300,)}
  assert shapes((3, 3, 8, 16)) == {"row": (3, 3, 8), "column": (3, 3, 16)}
  assert shapes((7,)) == {"v": (7,)}
  # Nothing to save in a column.
  assert shapes((7, 1)) == {"v": (7, 1)}


def test_adafactor_bears_rows_without_gradient(tf):
  weight = np.ones((3, 4), np.float32)
  gradient = np.zeros((3, 4), np.float32)
  gradient[1, 2] = 1e6
  actual, _ = run(tf, Adafactor.Params().Instantiate(), weight, [gradient] * 2)
  assert np.all(np.isfinite(actual))
  np.testing.assert_array_equal(actual[[0, 2]], weight[[0, 2]])
  assert actual[1, 2] < 1


def test_first_update_of_adam_has_the_size_of_the_learning_rate(tf):
  """Holds for any gradient if the bias corrections are exact."""
  gradient = np.array([1e-3, -5.0, 400.0], np.float32)
  params = Adam.Params().Set(beta2=0.99999, epsilon=1e-12)
  actual, _ = run(tf, params.Instantiate(), np.zeros(3, np.float32), [gradient])
  np.testing.assert_allclose(actual, [-0.1, 0.1, -0.1], rtol=1e-6)


@pytest.mark.parametrize(
  ("params", "message"),
  [
    (Momentum.Params().Set(momentum=1.0), r"Momentum\.momentum = 1\.0.*\[0, 1\)"),
    (RMSProp.Params().Set(epsilon=0), r"RMSProp\.epsilon = 0.*\(0, inf\)"),
    (RMSProp.Params().Set(decay=-0.1), r"RMSProp\.decay = -0\.1"),
    (Adam.Params().Set(beta2=1), r"Adam\.beta2 = 1"),
    (AdamW.Params().Set(weight_decay=-1.0), r"AdamW\.weight_decay = -1\.0"),
    (Adafactor.Params().Set(decay_exponent=0), r"Adafactor\.decay_exponent = 0"),
  ],
)
def test_rule_refuses_values_out_of_range(params, message):
  with pytest.raises(ValueError, match=message):
    params.Instantiate()


def test_rule_refuses_a_string_for_a_number():
  with pytest.raises(TypeError, match=r"Adam\.beta1 = '0\.9'.*a number in \[0, 1\)"):
    Adam.Params().Set(beta1="0.9").Instantiate()
