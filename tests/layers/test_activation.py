import math

import numpy as np
import pytest

from tfpipe.layers import activation

# Float32 erf and exp.
ATOL = 1e-6


def _value_and_gradient(tf, name, x):
  inputs = tf.constant(x, tf.float32)
  with tf.GradientTape() as tape:
    tape.watch(inputs)
    y = activation.apply(name, inputs)
  return y, tape.gradient(y, inputs)


def test_gelu_and_its_gradient_are_those_of_the_formula(tf):
  x = np.linspace(-6.0, 6.0, 49)
  y, dx = _value_and_gradient(tf, "gelu", x)
  cdf = 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
  density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
  np.testing.assert_allclose(y, x * cdf, atol=ATOL)
  np.testing.assert_allclose(dx, cdf + x * density, atol=ATOL)


def test_gelu_stays_finite_far_out(tf):
  y, dx = _value_and_gradient(tf, "gelu", [-1e20, -1e4, 1e4, 1e20])
  np.testing.assert_array_equal(y, np.float32([0.0, 0.0, 1e4, 1e20]))
  np.testing.assert_array_equal(dx, [0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
  ("name", "expected"), [("none", [-2.0, 0.0, 3.0]), ("relu", [0.0, 0.0, 3.0])]
)
def test_the_others_are_what_they_say(tf, name, expected):
  y, _ = _value_and_gradient(tf, name, [-2.0, 0.0, 3.0])
  np.testing.assert_array_equal(y, expected)


def test_every_activation_has_its_costs():
  assert set(activation.FLOPS) == set(activation.KEPT) == set(activation.NAMES)
