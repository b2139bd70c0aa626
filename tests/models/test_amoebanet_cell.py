import numpy as np
import pytest

from models.amoebanet.blocks import FactorizedReduction
from models.amoebanet.cell import Cell
from models.amoebanet.operations import operation
from tests.layers.run_layer import call, start_values
from tests.models import amoebanet_reference as reference
from tests.models.amoebanet_tables import WIRING
from tfpipe.cost import ArraySpec
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.dropout import DropPath
from tfpipe.nested_map import NestedMap

FILTERS, BATCH = 8, 2
# Some twenty normalizations of float32 after each other.
ATOL = 2e-4


def params(genotype="d", kind="normal", x=12, previous=6, **settings):
  return Cell.Params().Set(
    name="cell",
    genotype=f"amoebanet_{genotype}",
    reduction=kind == "reduction",
    filters=FILTERS,
    input_channels=x,
    previous_channels=previous,
    **settings,
  )


def maps(side, channels, seed=0):
  shape = (BATCH, side, side, channels)
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(tf, params, x, *previous, dilation=1):
  values = start_values(params.Instantiate())
  inputs = [tf.constant(v) for v in (x, *previous)]
  y, handed_on = call(tf, params, values, *inputs)
  kind = "reduction" if params.reduction else "normal"
  expected = reference.cell(
    values,
    params.genotype[-1],
    kind,
    FILTERS,
    x,
    previous[0] if previous else None,
    dilation,
  )
  np.testing.assert_allclose(y, expected, atol=ATOL)
  assert handed_on is inputs[0]


@pytest.mark.parametrize(("genotype", "kind"), WIRING)
@pytest.mark.parametrize("side", [6, 7])
def test_cells_do_what_their_tables_say(tf, genotype, kind, side):
  check(tf, params(genotype, kind), maps(side, 12), maps(side, 6, seed=1))


@pytest.mark.parametrize(("genotype", "kind"), WIRING)
def test_the_first_cell_takes_its_raw_input_for_the_previous_one(tf, genotype, kind):
  check(tf, params(genotype, kind, previous=0), maps(6, 12))


@pytest.mark.parametrize("genotype", "bd")
@pytest.mark.parametrize("side", [5, 6])
def test_a_larger_previous_map_is_reduced_without_losing_pixels(tf, genotype, side):
  p = params(genotype, previous_is_larger=True)
  check(tf, p, maps(side, 12), maps(2 * side - side % 2, 6, seed=1))


@pytest.mark.parametrize("genotype", "bd")
def test_a_previous_map_with_the_right_channels_stays_as_it_is(tf, genotype):
  p = params(genotype, previous=FILTERS)
  assert not any(w.startswith("previous") for w in p.Instantiate().weights())
  check(tf, p, maps(6, 12), maps(6, FILTERS, seed=1))


def test_dilation_spreads_the_taps_of_dil_2_operations_only(tf):
  x, previous = maps(9, 12), maps(9, 6, seed=1)
  check(tf, params("b", "reduction", dilation=2), x, previous, dilation=2)
  check(tf, params("d", "reduction", dilation=2), x, previous, dilation=1)


def test_equal_cells_share_one_signature():
  first, second = params().Set(name=""), params().Set(name="")
  assert first.ToText() == second.ToText()


def test_one_relu_per_state_serves_all_operations(tf):
  layer = params("d").Instantiate()
  values = start_values(layer)

  @tf.function(autograph=False)
  def fprop(x, previous):
    return layer.FProp(layer.Theta(values), x, previous)

  graph = fprop.get_concrete_function(maps(6, 12), maps(6, 6)).graph
  relus = [op for op in graph.get_operations() if op.type == "Relu"]
  # x and previous, states 0, 1 and 5, and inside: three in each 1x7_7x1.
  assert len(relus) == 2 + 3 + 2 * 3


def scales(tf, layer, keep):
  """Draws the factor of each path, as the cell does."""
  seed = tf.constant([11, 7, 0], tf.int64)
  theta = NestedMap(seed=seed)
  assert keep == layer.drop_path.params.keep_prob
  return [s.numpy() for s in layer.drop_path.scales(theta, BATCH)]


def test_drop_path_drops_operations_other_than_none(tf, monkeypatch):
  drop_path = DropPath.Params().Set(keep_prob=0.5, total_steps=1)
  p = params("d", drop_path=drop_path)
  layer = p.Instantiate()
  factors = iter(scales(tf, layer, 0.5))
  assert layer.seeds() == ["drop_path/seed"]
  apply = reference.apply

  def dropped(name, x, *rest):
    y = apply(name, x, *rest)
    return y if name == "none" else y * next(factors)[:, None, None, None]

  monkeypatch.setattr(reference, "apply", dropped)
  check(tf, p, maps(6, 12), maps(6, 6, seed=1))
  assert next(factors, None) is None


def test_nothing_is_dropped_in_evaluation(tf):
  x, previous = (tf.constant(maps(6, c)) for c in (12, 6))
  plain = params("d")
  values = start_values(plain.Instantiate())
  dropping = params("d", drop_path=DropPath.Params().Set(keep_prob=0.5))
  expected, _ = call(tf, plain, values, x, previous, do_eval=True)
  found, _ = call(tf, dropping, values, x, previous, do_eval=True)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"genotype": "amoebanet_x"}, "genotype = 'amoebanet_x'.*did you mean 'amoebanet_"),
    ({"filters": 2}, "Cell.filters = 2.*at least 4"),
    ({"input_channels": 0}, "Cell.input_channels = 0"),
    ({"previous_channels": -1}, "Cell.previous_channels = -1"),
    ({"dilation": 0}, "Cell.dilation = 0"),
    ({"previous_channels": 0, "previous_is_larger": True}, "previous_is_larger = True"),
  ],
)
def test_bad_settings_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    params().Set(**settings).Instantiate()


def test_unknown_operations_are_refused():
  with pytest.raises(ValueError, match="unknown operation 'max_pol_3x3'; did you mean"):
    operation("max_pol_3x3", 4, 4, 1, 1, BatchNorm.Params())


def test_a_reduction_to_odd_filters_is_refused():
  p = params("d", previous_is_larger=True).Set(filters=9)
  with pytest.raises(ValueError, match=r"Reduction\.filters = 9: .*even"):
    p.Instantiate()


MAP = ArraySpec((BATCH, 6, 6, 12))
HALF = ArraySpec((BATCH, 6, 6, 6))


@pytest.mark.parametrize(
  ("previous", "inputs", "message"),
  [
    (6, (MAP,), "cell: got 1 inputs, expected 2 with previous_channels = 6"),
    (0, (MAP, HALF), "cell: got 2 inputs, expected 1 with previous_channels = 0"),
    (6, (MAP, HALF, HALF), "cell: got 3 inputs, expected 2"),
    (6, (HALF, HALF), "cell: got 6 channels, expected 12"),
    (6, (MAP, MAP), "cell: got 12 channels, expected 6"),
    (6, (MAP, ArraySpec((BATCH, 6))), r"cell: got shape \(2, 6\), expected \[batch, h"),
  ],
)
def test_inputs_other_than_the_params_say_are_refused(previous, inputs, message):
  cell = params(previous=previous)
  with pytest.raises(ValueError, match=message):
    cell.cls.FPropMeta(cell, *inputs)


@pytest.mark.parametrize("sides", [(6, 6), (11, 13), (12, 10), (3, 3), (12, 12)])
@pytest.mark.parametrize("is_larger", [False, True])
def test_maps_of_other_sides_than_the_params_say_are_refused(tf, sides, is_larger):
  cell = params(previous_is_larger=is_larger)
  previous = ArraySpec((BATCH, *sides, 6))
  if sides == ((12, 12) if is_larger else (6, 6)):
    cell.cls.FPropMeta(cell, MAP, previous)
    return
  allowed = "twice" if is_larger else "the same"
  with pytest.raises(ValueError, match=rf"cell: got maps of \(6, 6\) .*{allowed}"):
    cell.cls.FPropMeta(cell, MAP, previous)
  arrays = [tf.zeros(spec.shape) for spec in (MAP, previous)]
  with pytest.raises(tf.errors.InvalidArgumentError):
    call(tf, cell, start_values(cell.Instantiate()), *arrays)


@pytest.mark.parametrize(
  ("x", "message"),
  [
    (ArraySpec((BATCH, 6)), r"reduce: got shape \(2, 6\), expected \[batch, height"),
    (HALF, "reduce: got 6 channels, expected 12"),
  ],
)
def test_a_factorized_reduction_refuses_what_is_no_such_map(x, message):
  p = FactorizedReduction.Params().Set(name="reduce", input_channels=12, filters=8)
  with pytest.raises(ValueError, match=message):
    FactorizedReduction.FPropMeta(p, x)
