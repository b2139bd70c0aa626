import numpy as np
import pytest

from tests.layers import reference
from tests.layers.run_layer import call, gradients, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.base import tracing
from tfpipe.layers.batch_norm import BatchNorm

DIM, EPSILON, DECAY = 5, 1e-3, 0.9
SHAPE = (4, 3, 6, DIM)
# Float32 sums over 72 cells.
ATOL = 1e-5


def params(**settings):
  return BatchNorm.Params().Set(
    name="norm", dim=DIM, epsilon=EPSILON, decay=DECAY, **settings
  )


def some_input(shape=SHAPE):
  rng = np.random.default_rng(3)
  return (3 + 2 * rng.normal(size=shape)).astype(np.float32)


def some_weights():
  values = start_values(params().Instantiate())
  return {**values, "moving_variance": np.square(values["moving_variance"])}


def moments(tf, x, params=None, do_eval=False):
  """What the layer hands out."""
  layer = (params or BatchNorm.Params().Set(dim=DIM)).Instantiate()
  with tracing(do_eval=do_eval) as aux:
    layer.FProp(layer.Theta(some_weights()), tf.constant(x))
  return aux.moments


def keras_norm(tf, values):
  layer = tf.keras.layers.BatchNormalization(momentum=DECAY, epsilon=EPSILON)
  layer.build(SHAPE)
  names = ("gamma", "beta", "moving_mean", "moving_variance")
  layer.set_weights([values[name] for name in names])
  return layer


def test_training_normalizes_by_the_moments_of_the_micro_batch(tf):
  x, values = some_input(), some_weights()
  y = call(tf, params(), values, tf.constant(x))
  expected = reference.batch_norm(x, values["gamma"], values["beta"], EPSILON)
  np.testing.assert_allclose(y, expected, atol=ATOL)


def test_training_and_its_gradients_equal_keras(tf):
  x, values = some_input(), some_weights()
  dy = np.random.default_rng(4).normal(size=SHAPE).astype(np.float32)
  run = gradients(tf, params(), values, [x], dy)
  layer = keras_norm(tf, values)
  with tf.GradientTape() as tape:
    tape.watch(inputs := tf.constant(x))
    output = layer(inputs, training=True)
    loss = tf.reduce_sum(output * dy)
  dx, dgamma, dbeta = tape.gradient(loss, [inputs, *layer.trainable_variables])
  np.testing.assert_allclose(run.output, output, atol=ATOL)
  np.testing.assert_allclose(run.inputs[0], dx, atol=ATOL)
  np.testing.assert_allclose(run.weights["gamma"], dgamma, atol=10 * ATOL)
  np.testing.assert_allclose(run.weights["beta"], dbeta, atol=10 * ATOL)
  assert run.weights["moving_mean"] is None


def test_evaluation_equals_keras(tf):
  x, values = some_input(), some_weights()
  y = call(tf, params(), values, tf.constant(x), do_eval=True)
  expected = keras_norm(tf, values)(x, training=False)
  np.testing.assert_allclose(y, expected, atol=ATOL)


def test_moments_handed_out_step_the_averages_as_keras_does(tf):
  x, values = some_input(), some_weights()
  ((mean, variance, decay),) = moments(tf, x, params()).values()
  assert decay == DECAY
  layer = keras_norm(tf, values)
  layer(x, training=True)
  for new, name, variable in (
    (mean, "moving_mean", layer.moving_mean),
    (variance, "moving_variance", layer.moving_variance),
  ):
    stepped = DECAY * values[name] + (1 - DECAY) * new
    np.testing.assert_allclose(stepped, variable, atol=ATOL)


def test_the_variance_handed_out_is_the_biased_one(tf):
  x = some_input((1, 1, 2, DIM))
  ((_, variance, _),) = moments(tf, x).values()
  np.testing.assert_allclose(variance, x.var((0, 1, 2)), rtol=1e-5)


def test_the_variance_of_one_cell_is_zero(tf):
  ((mean, variance, _),) = moments(tf, some_input((1, 1, 1, DIM))).values()
  np.testing.assert_array_equal(mean, some_input((1, 1, 1, DIM))[0, 0, 0])
  np.testing.assert_array_equal(variance, np.zeros(DIM))


def test_evaluation_hands_out_no_moments(tf):
  assert not moments(tf, some_input(), do_eval=True)


def test_a_frozen_norm_uses_the_moving_averages_in_training_too(tf):
  x, values, frozen = some_input(), some_weights(), params(trainable=False)
  evaluated = call(tf, params(), values, tf.constant(x), do_eval=True)
  np.testing.assert_array_equal(call(tf, frozen, values, tf.constant(x)), evaluated)
  assert not moments(tf, x, frozen)
  assert not any(w.trainable for w in frozen.Instantiate().weights().values())


def test_the_gradient_of_a_frozen_norm_is_its_scale(tf):
  values, dy = some_weights(), np.ones(SHAPE, np.float32)
  run = gradients(tf, params(trainable=False), values, [some_input()], dy)
  scale = values["gamma"] / np.sqrt(values["moving_variance"] + EPSILON)
  expected = np.broadcast_to(scale, SHAPE)
  np.testing.assert_allclose(run.inputs[0], expected, rtol=1e-5)


def test_weights_start_as_the_identity_and_only_gamma_and_beta_are_trained(tf):
  weights = params().Instantiate().weights()
  start = {n: float(w.init.values(n, w.shape, 0)[0]) for n, w in weights.items()}
  assert start == {"gamma": 1, "beta": 0, "moving_mean": 0, "moving_variance": 1}
  assert [n for n, w in weights.items() if w.trainable] == ["gamma", "beta"]
  assert not any(w.l2 for w in weights.values())


def test_cost_counts_trained_and_stored_weights():
  cost = BatchNorm.FPropMeta(params(), ArraySpec(SHAPE))
  assert cost.param_count == 2 * DIM
  assert cost.param_bytes == 4 * 4 * DIM
  with pytest.raises(ValueError, match="norm: got 4 channels, expected 5"):
    BatchNorm.FPropMeta(params(), ArraySpec((1, 2, 2, 4)))


@pytest.mark.parametrize(
  ("name", "value"), [("dim", 0), ("decay", 1.5), ("epsilon", 0.0), ("epsilon", -1.0)]
)
def test_bad_settings_are_refused(name, value):
  with pytest.raises(ValueError, match=f"BatchNorm.{name} = {value}"):
    params().Set(**{name: value}).Instantiate()
