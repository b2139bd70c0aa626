"""Holds every layer to its contract in 16 bits: what it gets, hands on and keeps."""

import numpy as np
import pytest

from models.amoebanet.cell import Cell
from models.transformer.block import TransformerBlock
from tests.layers import conformance, conformance_text, profiler
from tfpipe import cost
from tfpipe.nested_map import NestedMap
from tfpipe.packed import unpack
from tfpipe.pipeline import mixed_precision
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.pipeline.layer_function import LayerFunction
from tfpipe.traced import specs

ROWS = conformance.ROWS + conformance_text.ROWS
by_row = pytest.mark.parametrize(
  ("factory", "inputs", "side"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
# Norms of differences over those of float32's values: a few units in the last place,
# 2^-8 and 2^-11, but for gradients where rounding changes which of nearly equal numbers
# is the largest under a window, or whether one is above 0.
TOLERANCES = {"bfloat16": 0.02, "float16": 0.01}
BENDS = {Cell: 0.3, TransformerBlock: 0.1}
# Cells take long to trace: these hold all of their operations.
CELLS = ("cell-b", "cell-d", "cell-d-reduction", "cell-d-aux")
VALUED = [
  pytest.param(dtype, *row[1:], id=f"{dtype}-{row[0]}")
  for dtype in TOLERANCES
  for row in ROWS
  if not row[0].startswith("cell") or (dtype == "bfloat16" and row[0] in CELLS)
]


def _meta(factory, inputs, side, dtype):
  params = factory()
  extra = [NestedMap(side)] if side else []
  return params.cls.FPropMeta(params, *cost.in_dtype(inputs, dtype), *extra)


def _function(tf, dtype, factory, inputs, side):
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
      function = _function(tf, dtype, *row)
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
def test_a_forward_keeps_as_much_less_as_predicted(traced, factory, inputs, side):
  half, full = (
    sum((t.shape.num_elements() or 0) * t.dtype.size for t in gradient.kept)
    for _, gradient in (
      traced(dtype, factory, inputs, side) for dtype in ("bfloat16", "float32")
    )
  )
  predicted_half, predicted_full = (
    _meta(factory, inputs, side, dtype).activation_bytes
    for dtype in ("bfloat16", "float32")
  )
  share = predicted_half / predicted_full if predicted_full else 1.0
  assert half == pytest.approx(share * full, rel=0.1, abs=64)


def _values(tf, traced, row):
  """Gives outputs and gradients of a random function of them, as float32 vectors."""
  function, gradient = traced
  factory, *fields = row
  weights, _, *rest = profiler.trace(tf, factory(), *fields).arguments
  seeds = tf.constant([[i, 7, 0] for i in range(function.num_seeds)], tf.int64)
  seeds = tf.reshape(seeds, [-1, 3])
  flat = [*weights.values(), seeds, *tf.nest.flatten(rest)]
  args = [tf.cast(x, arg.dtype) for x, arg in zip(flat, function.args, strict=True)]

  @tf.function
  def run(args):
    values = [args[place] for place in gradient.forward.reads]
    found = gradient.forward(values)
    outputs, kept = found[: len(function.outputs)], found[len(function.outputs) :]
    dys = [
      tf.cast(profiler.draw(cost.ArraySpec(tuple(dy.shape)), 9), dy.dtype)
      for dy in gradient.dys
    ]
    known = [*args, *kept, *dys]
    call = gradient.backward
    found = call([known[place] for place in call.reads])
    own = specs(function.args[place] for place in gradient.weights)
    return outputs, [
      *found[: gradient.num_dxs],
      *(unpack(found[-1], own) if own else []),
    ]

  outputs, gradients = run(args)
  count = gradient.num_dxs
  assert all(g.dtype == tf.float32 for g in gradients[count:])  # of weights
  own = [y for y in outputs if y.dtype.is_floating and y.shape.num_elements()]
  return [
    np.concatenate([np.ravel(tf.cast(t, tf.float32)) for t in part] or [np.zeros(1)])
    for part in (own, gradients)
  ]


@pytest.mark.parametrize(("dtype", "factory", "inputs", "side"), VALUED)
def test_values_and_gradients_are_those_of_float32_rounded(
  tf, traced, dtype, factory, inputs, side
):
  row = factory, inputs, side
  full = _values(tf, traced("float32", *row), row)
  half = _values(tf, traced(dtype, *row), row)
  bends = [far for kind, far in BENDS.items() if issubclass(factory().cls, kind)]
  tolerances = [TOLERANCES[dtype], *bends, TOLERANCES[dtype]][:2]
  for got, expected, tolerance in zip(half, full, tolerances, strict=True):
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - expected)
    assert error <= tolerance * np.linalg.norm(expected) + 1e-6
