import math

import numpy as np
import pytest

from tests.layers.run_layer import call, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.linear import Linear

# Sums of a dozen products in float32 against float64.
ATOL = 1e-5


def _normal_cdf(x):
  return 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


_ACTIVATIONS = {
  "none": lambda x: x,
  "relu": lambda x: np.maximum(x, 0.0),
  "gelu": lambda x: x * _normal_cdf(x),
}


@pytest.fixture
def x():
  return np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float32)


@pytest.mark.parametrize("activation", sorted(_ACTIVATIONS))
def test_it_multiplies_adds_and_activates(tf, x, activation):
  params = Linear.Params().Set(in_dim=5, out_dim=4, activation=activation)
  values = start_values(params.Instantiate())
  expected = _ACTIVATIONS[activation](x.astype(np.float64) @ values["w"] + values["b"])
  np.testing.assert_allclose(call(tf, params, values, x), expected, atol=ATOL)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 2, 2, 5)])
def test_leading_dimensions_stay(tf, shape):
  params = Linear.Params().Set(in_dim=5, out_dim=3)
  values = start_values(params.Instantiate())
  x = np.ones(shape, np.float32)
  y = call(tf, params, values, x)
  assert y.shape == (*shape[:-1], 3)
  np.testing.assert_allclose(y, x @ values["w"] + values["b"], atol=ATOL)


def test_without_bias_there_is_one_weight(tf, x):
  params = Linear.Params().Set(in_dim=5, out_dim=4, bias=False)
  values = start_values(params.Instantiate())
  assert list(values) == ["w"]
  np.testing.assert_allclose(call(tf, params, values, x), x @ values["w"], atol=ATOL)


def test_init_scale_scales_the_start_values(tf):
  def start(scale):
    params = Linear.Params().Set(in_dim=8, out_dim=8, init_scale=scale)
    return params.Instantiate().weights()["w"].init.values("w", (8, 8), 0)

  np.testing.assert_allclose(start(0.25), 0.25 * start(1.0).numpy(), rtol=1e-6)


def test_only_the_kernel_is_in_the_l2_term():
  weights = Linear.Params().Set(in_dim=2, out_dim=3).Instantiate().weights()
  assert {path: weight.l2 for path, weight in weights.items()} == {
    "w": True,
    "b": False,
  }


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("in_dim", 0, "Linear.in_dim = 0: it must be an integer of at least 1"),
    ("out_dim", 2.5, r"Linear.out_dim = 2.5"),
    ("activation", "gelo", "did you mean 'gelu'"),
    ("init_scale", 0.0, r"Linear.init_scale = 0.0"),
    ("bias", "yes", "Linear.bias = 'yes'"),
  ],
)
def test_bad_params_are_refused(field, value, message):
  params = Linear.Params().Set(in_dim=2, out_dim=3).Set(**{field: value})
  with pytest.raises((TypeError, ValueError), match=message):
    params.Instantiate()


def test_an_input_of_another_width_is_refused():
  params = Linear.Params().Set(name="logits", in_dim=2, out_dim=3)
  with pytest.raises(ValueError, match=r"logits: in_dim=2, but the input is \(4, 5\)"):
    Linear.FPropMeta(params, ArraySpec((4, 5)))
