"""Holds every layer to the contract of `tfpipe/layers/base.py`, row by row."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from tests.layers import conformance, conformance_text, profiler
from tfpipe import cost
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.pipeline.layer_function import LayerFunction

# Of central differences: small against the bends of ReLU and max pool, large against
# rounding. Where a direction meets a bend the difference is off by some percent.
STEP = 1e-4
TOLERANCE = 0.1
ROWS = conformance.ROWS + conformance_text.ROWS
by_row = pytest.mark.parametrize(
  ("factory", "inputs", "side"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)


def meta(factory, inputs, side):
  extra = [NestedMap(side)] if side else []
  params = factory()
  return params.cls.FPropMeta(params, *inputs, *extra)


@pytest.fixture(scope="module")
def traced(tf):
  """Traces each row once for all tests."""
  found = {}

  def trace(factory, inputs, side):
    key = factory, inputs
    if key not in found:
      found[key] = profiler.trace(tf, factory(), inputs, side)
    return found[key]

  return trace


@by_row
def test_predicted_shapes_are_the_real_ones(tf, traced, factory, inputs, side):
  outputs = tf.nest.flatten(
    traced(factory, inputs, side).concrete.structured_outputs[0]
  )
  predicted = cost.flatten(meta(factory, inputs, side).out_shapes)
  assert [tuple(y.shape) for y in outputs] == [spec.shape for spec in predicted]
  assert [y.dtype.name for y in outputs] == [spec.dtype for spec in predicted]


@by_row
def test_predicted_parameters_are_the_weights_declared(factory, inputs, side):
  weights = factory().Instantiate().weights().values()
  weights = [w for w in weights if not w.tied_to]
  predicted = meta(factory, inputs, side)
  trainable = [np.prod(w.shape, dtype=int) for w in weights if w.trainable]
  assert predicted.param_count == sum(trainable)
  assert predicted.param_bytes == 4 * sum(np.prod(w.shape, dtype=int) for w in weights)


@by_row
def test_predicted_flops_are_what_the_profiler_counts(
  tf, traced, factory, inputs, side
):
  predicted = meta(factory, inputs, side)
  flops, matmul_flops = profiler.profiled_flops(tf, traced(factory, inputs, side))
  assert predicted.matmul_flops == matmul_flops
  assert predicted.flops == pytest.approx(flops, rel=0.01)


@by_row
def test_predicted_activation_bytes_are_what_the_tape_keeps(
  tf, traced, factory, inputs, side
):
  predicted = meta(factory, inputs, side)
  kept = profiler.kept_bytes(tf, traced(factory, inputs, side))
  # A few scalars and vectors are left out of the formulas.
  assert predicted.activation_bytes == pytest.approx(kept, rel=0.1, abs=64)


@by_row
def test_the_gradient_is_that_of_the_function(tf, traced, factory, inputs, side):
  exact, numeric, norm = profiler.derivatives(tf, traced(factory, inputs, side), STEP)
  assert exact == pytest.approx(numeric, abs=TOLERANCE * norm)


@by_row
def test_params_survive_copy_text_and_pickle(factory, inputs, side):
  params = factory()
  assert params.Copy() == params
  assert pickle.loads(pickle.dumps(params)) == params
  assert params.ToText() == factory().ToText()


def _layer_function(tf, factory, inputs, side):
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
  return LayerFunction(
    factory().Instantiate(),
    tuple(specs),
    {name: tf.TensorSpec(x.shape, x.dtype) for name, x in (side or {}).items()},
    do_eval=False,
    execution=Execution(),
  )


@by_row
def test_one_trace_serves_all_calls(tf, factory, inputs, side):
  function = _layer_function(tf, factory, inputs, side)
  theta, _, *rest = profiler.trace(tf, factory(), inputs, side).arguments
  seeds = tf.zeros([function.num_seeds, 3], tf.int64)
  args = tf.nest.flatten([list(theta.values()), seeds, *rest])
  forward = tf.function(
    lambda: function.forward([args[place] for place in function.forward.reads])
  )
  outputs = [forward() for _ in range(2)]
  assert function.num_traces == 1
  for first, second in zip(*outputs, strict=True):
    np.testing.assert_array_equal(first, second)


@by_row
def test_a_layer_that_says_so_splits_its_backward(tf, factory, inputs, side):
  function = _layer_function(tf, factory, inputs, side)
  layer = function.layer
  theta = [i for i, w in enumerate(layer.weights().values()) if w.trainable]
  specs = tf.nest.flatten(function.out_specs)
  dys = tuple(isinstance(s, tf.TensorSpec) and s.dtype.is_floating for s in specs)
  gradient = function.gradient(GradientKey(dys, True, tuple(theta), -1))
  assert bool(gradient.unsplit) <= (not _splits(layer))
  # One that has nothing else than what does not split says no for nothing.
  if isinstance(layer, BatchNorm) and layer.params.trainable:
    assert gradient.unsplit


def _splits(layer):
  return layer.SPLITS_BACKWARD and all(map(_splits, layer.children()))


def test_costs_need_no_tensorflow():
  code = (
    "import sys\n"
    "from tests.layers.test_conformance import ROWS, meta\n"
    "for row in ROWS: meta(*row[1:])\n"
    "print('tensorflow' in sys.modules)"
  )
  run = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert run.stdout == "False\n"
