"""Holds every layer to its contract in 16 bits: what it is handed, hands on and keeps."""

import numpy as np
import pytest

from tests.layers import conformance, conformance_text, profiler
from tfpipe import cost
from tfpipe.layers.softmax_loss import SoftmaxLoss
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline import mixed_precision
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.pipeline.layer_function import LayerFunction

ROWS = conformance.ROWS + conformance_text.ROWS
by_row = pytest.mark.parametrize(
  ("factory", "inputs", "side"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
# Norms of differences over those of float32's own: these are a few units of the last
# place, 2^-8 and 2^-11, through as many operations as a cell has one after the other.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.01}


def _meta(factory, inputs, side, dtype):
  params = factory()
  extra = [NestedMap(side)] if side else []
  return params.cls.FPropMeta(params, *cost.in_dtype(inputs, dtype), *extra)


def _function(tf, factory, inputs, side, dtype):
  layer = factory().Instantiate()
  mixed_precision.prepare([layer], dtype, "")
  # What a layer gets from the one before has the dtype; a batch's own has not.
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in cost.in_dtype(inputs, dtype)]
  return LayerFunction(
    layer,
    tuple(specs),
    {name: tf.TensorSpec(x.shape, x.dtype) for name, x in (side or {}).items()},
    do_eval=False,
    execution=Execution(),
  )


def _gradient(tf, function):
  weights = function.layer.weights().values()
  theta = tuple(i for i, weight in enumerate(weights) if weight.trainable)
  specs = tf.nest.flatten(function.out_specs)
  dys = tuple(isinstance(s, tf.TensorSpec) and s.dtype.is_floating for s in specs)
  return function.gradient(GradientKey(dys, True, theta, -1))


@pytest.fixture(scope="module")
def traced(tf):
  """Traces each row once for all tests, in each dtype."""
  found = {}

  def trace(dtype, *row):
    key = dtype, *row[:2]
    if key not in found:
      function = _function(tf, *row, dtype)
      found[key] = function, _gradient(tf, function)
    return found[key]

  return trace


@by_row
def test_predicted_borders_are_the_real_ones(tf, traced, factory, inputs, side):
  function, _ = traced("bfloat16", factory, inputs, side)
  predicted = _meta(factory, inputs, side, "bfloat16").out_shapes
  predicted = cost.flatten(cost.in_dtype(predicted, "bfloat16"))
  real = tf.nest.flatten(function.out_specs)
  assert [(tuple(y.shape), y.dtype.name) for y in real] == [
    (spec.shape, spec.dtype) for spec in predicted
  ]


@by_row
def test_predicted_costs_but_bytes_are_those_of_float32(factory, inputs, side):
  half = _meta(factory, inputs, side, "bfloat16")
  full = _meta(factory, inputs, side, "float32")
  assert half.activation_bytes <= full.activation_bytes
  for field in ("flops", "matmul_flops", "param_count", "param_bytes"):
    assert getattr(half, field) == getattr(full, field)


@by_row
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_predicted_activation_bytes_are_what_a_forward_keeps(
  traced, factory, inputs, side, dtype
):
  _, gradient = traced(dtype, factory, inputs, side)
  kept = sum((t.shape.num_elements() or 0) * t.dtype.size for t in gradient.kept)
  predicted = _meta(factory, inputs, side, dtype).activation_bytes
  assert predicted == pytest.approx(kept, rel=0.1, abs=64)


def _values(tf, function, gradient, factory, inputs, side):
  """Gives outputs and gradients of a random function of them, as float32 vectors."""
  weights, _, *rest = profiler.trace(tf, factory(), inputs, side).arguments
  seeds = tf.constant([[i, 7, 0] for i in range(function.num_seeds)], tf.int64)
  seeds = tf.reshape(seeds, [-1, 3])
  flat = [*weights.values(), seeds, *tf.nest.flatten(rest)]
  args = [
    tf.cast(x, arg.dtype) for x, arg in zip(flat, function.args, strict=True)
  ]

  @tf.function
  def run():
    values = [args[place] for place in gradient.forward.reads]
    found = gradient.forward(values)
    outputs, kept = found[: len(function.outputs)], found[len(function.outputs) :]
    dys = [
      tf.cast(profiler.draw(cost.ArraySpec(tuple(dy.shape)), 9), dy.dtype)
      for dy in gradient.dys
    ]
    known = [*args, *kept, *dys]
    call = gradient.backward
    return outputs, call([known[place] for place in call.reads])

  outputs, gradients = run()
  count = gradient.num_dxs
  assert all(g.dtype == tf.float32 for g in gradients[count:])  # of weights
  own = [y for y in outputs if y.dtype.is_floating and y.shape.num_elements()]
  return [
    np.concatenate([np.ravel(tf.cast(t, tf.float32)) for t in part] or [np.zeros(1)])
    for part in (own, gradients)
  ]


@by_row
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_and_gradients_are_those_of_float32_rounded(
  tf, traced, factory, inputs, side, dtype
):
  row = factory, inputs, side
  full = _values(tf, *traced("float32", *row), *row)
  half = _values(tf, *traced(dtype, *row), *row)
  for got, expected in zip(half, full, strict=True):
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - expected)
    print(error / (np.linalg.norm(expected) + 1e-9), "REL")
    assert error <= TOLERANCES[dtype] * np.linalg.norm(expected) + 1e-6
