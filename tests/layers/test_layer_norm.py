import numpy as np
import pytest

from tests.layers.run_layer import call, gradients, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.layer_norm import LayerNorm

# Means of a few dozen float32 numbers.
ATOL = 2e-5


@pytest.fixture
def x():
  return np.random.default_rng(1).normal(2.0, 3.0, size=(2, 3, 16)).astype(np.float32)


def test_value_and_gradients_are_those_of_keras(tf, x):
  params = LayerNorm.Params().Set(dim=16, epsilon=1e-3)
  values = start_values(params.Instantiate())
  dy = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
  run = gradients(tf, params, values, [x], dy)

  keras = tf.keras.layers.LayerNormalization(epsilon=1e-3)
  keras.build(x.shape)
  keras.set_weights([values["scale"], values["bias"]])
  with tf.GradientTape() as tape:
    inputs = tf.constant(x)
    tape.watch(inputs)
    expected = keras(inputs)
    loss = tf.reduce_sum(expected * dy)
  dx, dscale, dbias = tape.gradient(loss, [inputs, keras.gamma.value, keras.beta.value])

  np.testing.assert_allclose(run.output, expected, atol=ATOL)
  np.testing.assert_allclose(run.inputs[0], dx, atol=ATOL)
  np.testing.assert_allclose(run.weights["scale"], dscale, atol=ATOL)
  np.testing.assert_allclose(run.weights["bias"], dbias, atol=ATOL)


def test_it_starts_as_plain_normalization(tf, x):
  params = LayerNorm.Params().Set(dim=16)
  weights = params.Instantiate().weights()
  values = {k: w.init.values(k, w.shape, 0) for k, w in weights.items()}
  y = call(tf, params, values, x).numpy()
  np.testing.assert_allclose(y.mean(-1), 0.0, atol=ATOL)
  np.testing.assert_allclose(y.std(-1), 1.0, atol=ATOL)


def test_a_constant_row_gives_the_bias_and_a_finite_gradient(tf):
  params = LayerNorm.Params().Set(dim=4)
  values = start_values(params.Instantiate())
  run = gradients(tf, params, values, [np.full((1, 4), 5.0, np.float32)], 1.0)
  np.testing.assert_allclose(run.output[0], values["bias"], atol=ATOL)
  assert np.isfinite(run.inputs[0]).all()


def test_no_weight_is_in_the_l2_term():
  weights = LayerNorm.Params().Set(dim=4).Instantiate().weights()
  assert not any(weight.l2 for weight in weights.values())


@pytest.mark.parametrize(("field", "value"), [("dim", 0), ("epsilon", 0.0)])
def test_bad_params_are_refused(field, value):
  params = LayerNorm.Params().Set(dim=4).Set(**{field: value})
  with pytest.raises(ValueError, match=f"LayerNorm.{field} = {value}"):
    params.Instantiate()


def test_an_input_of_another_width_is_refused():
  params = LayerNorm.Params().Set(name="norm", dim=4)
  with pytest.raises(ValueError, match=r"norm: dim=4, but the input is \(2, 5\)"):
    LayerNorm.FPropMeta(params, ArraySpec((2, 5)))
