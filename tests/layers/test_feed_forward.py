import math

import numpy as np
import pytest

from tests.layers.run_layer import call, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.feed_forward import FeedForward

ATOL = 1e-5


def _params(**fields):
  return FeedForward.Params().Set(dim=4, hidden_dim=10).Set(**fields)


def _gelu(x):
  return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


@pytest.mark.parametrize(
  ("activation", "function"), [("relu", lambda x: np.maximum(x, 0)), ("gelu", _gelu)]
)
def test_it_is_two_products_with_an_activation_between(tf, activation, function):
  params = _params(activation=activation)
  values = start_values(params.Instantiate())
  x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
  hidden = function(x @ values["hidden/w"] + values["hidden/b"])
  expected = hidden @ values["output/w"] + values["output/b"]
  np.testing.assert_allclose(call(tf, params, values, x), expected, atol=ATOL)


def test_positions_do_not_see_each_other(tf):
  params = _params()
  values = start_values(params.Instantiate())
  x = np.random.default_rng(1).normal(size=(1, 3, 4)).astype(np.float32)
  before = call(tf, params, values, x).numpy()
  x[0, 1] += 1.0
  after = call(tf, params, values, x).numpy()
  np.testing.assert_array_equal(before[0, [0, 2]], after[0, [0, 2]])


def test_init_scale_scales_both_matrices(tf):
  small = start_values(_params(init_scale=0.5).Instantiate())
  large = start_values(_params().Instantiate())
  for name in ("hidden/w", "output/w"):
    np.testing.assert_allclose(small[name], 0.5 * large[name], rtol=1e-6)


def test_parameters_are_two_matrices_and_two_biases():
  cost = FeedForward.FPropMeta(_params(), ArraySpec((2, 3, 4)))
  assert cost.param_count == 2 * 4 * 10 + 10 + 4


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("hidden_dim", 0, "FeedForward.hidden_dim = 0"),
    ("activation", "none", "FeedForward.activation = 'none'"),
    ("init_scale", 0.0, "FeedForward.init_scale = 0.0"),
  ],
)
def test_bad_params_are_refused(field, value, message):
  with pytest.raises(ValueError, match=message):
    _params(**{field: value}).Instantiate()


def test_an_input_of_another_width_is_refused():
  with pytest.raises(ValueError, match=r"ff: dim=4, but the input is \(2, 5\)"):
    FeedForward.FPropMeta(_params(name="ff"), ArraySpec((2, 5)))
