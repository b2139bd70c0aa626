from __future__ import annotations

import collections
import dataclasses

import pytest

from tfpipe.cost import ArraySpec, LayerCost, flatten, in_dtype, total
from tfpipe.nested_map import NestedMap

COST = LayerCost(
  name="layer",
  flops=100,
  matmul_flops=80,
  param_count=6,
  param_bytes=24,
  activation_bytes=40,
  out_shapes=ArraySpec((2, 3)),
)


def test_an_array_knows_its_size_and_bytes() -> None:
  assert ArraySpec((4, 3, 2)).size == 24
  assert ArraySpec((4, 3, 2)).bytes == 96
  assert ArraySpec((4, 3, 2), "bfloat16").bytes == 48
  assert ArraySpec((), "int64").bytes == 8
  assert ArraySpec((5, 0)).bytes == 0


def test_an_array_refuses_unknown_dimensions_and_dtypes() -> None:
  with pytest.raises(ValueError, match=r"\(3, -1\): axis 1 is -1"):
    ArraySpec((3, -1))
  with pytest.raises(ValueError, match="axis 0 is None"):
    ArraySpec((None,))  # type: ignore[arg-type]
  with pytest.raises(ValueError, match=r"dtype 'float31' is not one of .*float32"):
    ArraySpec((3,), "float31")


def test_flattening_is_in_order_with_sorted_keys_and_without_none() -> None:
  a, b, c, d = (ArraySpec((n,)) for n in range(4))
  assert flatten({"z": a, "m": (b, None, [c]), "b": d}) == [d, b, c, a]
  assert flatten(None) == []


def test_flattening_names_what_is_no_structure() -> None:
  with pytest.raises(TypeError, match=r"out_shapes\.x\[1\] is a int, expected Array"):
    flatten({"x": (None, 3)})
  with pytest.raises(TypeError, match=r"out_shapes\[1\] is a object, expected Array"):
    flatten((ArraySpec((2,)), object()))


def test_python_values_cross_a_border_without_bytes() -> None:
  values = {"times": 3, "rate": 0.5, "on": True, "kind": "relu", "raw": b"x", "c": 1j}
  border = (ArraySpec((2, 3)), NestedMap(values, level=pytest.ExitCode.OK))
  assert flatten(border) == [border[0]]
  assert dataclasses.replace(COST, out_shapes=border).border_bytes == 24
  assert in_dtype(border, "bfloat16") == (ArraySpec((2, 3), "bfloat16"), border[1])


def test_a_shape_is_no_border() -> None:
  with pytest.raises(TypeError, match=r"out_shapes\[0\] is a int, expected ArraySpec"):
    dataclasses.replace(COST, out_shapes=(2, 3))


def test_the_border_holds_all_arrays() -> None:
  border = (ArraySpec((2, 3)), {"mask": ArraySpec((2,), "bool"), "none": None})
  assert dataclasses.replace(COST, out_shapes=border).border_bytes == 24 + 2


@pytest.mark.parametrize(
  "field", ["flops", "matmul_flops", "param_count", "param_bytes", "activation_bytes"]
)
def test_a_cost_refuses_numbers_below_zero(field: str) -> None:
  with pytest.raises(ValueError, match=f"layer: {field} is -1"):
    dataclasses.replace(COST, **{field: -1})


def test_a_cost_refuses_more_matmul_flops_than_flops() -> None:
  with pytest.raises(ValueError, match="layer: matmul_flops 101 exceed flops 100"):
    dataclasses.replace(COST, matmul_flops=101)


def test_a_cost_refuses_a_bad_structure() -> None:
  with pytest.raises(TypeError, match="out_shapes is a str"):
    dataclasses.replace(COST, out_shapes="[2, 3]")


def test_the_total_adds_up_and_keeps_inner_borders() -> None:
  last = dataclasses.replace(COST, out_shapes=(ArraySpec((7,)), None))
  cell = total([COST, COST, last], name="cell")
  assert (cell.name, cell.flops, cell.matmul_flops) == ("cell", 300, 240)
  assert (cell.param_count, cell.param_bytes) == (18, 72)
  # Three layers' own, and the inputs of the second and the third (24 bytes each).
  assert cell.activation_bytes == 3 * 40 + 2 * 24
  assert cell.out_shapes == last.out_shapes


def test_the_total_of_one_layer_is_that_layer() -> None:
  assert total([COST], name="layer") == COST


def test_the_total_of_nothing_is_refused() -> None:
  with pytest.raises(ValueError, match="cell 2: no layers"):
    total([], name="cell 2")


def test_a_border_in_a_dtype_has_its_float32_arrays_in_it_but_no_numbers() -> None:
  Pair = collections.namedtuple("Pair", "left right")
  ids, x = ArraySpec((2,), "int32"), ArraySpec((2, 3))
  wide, number, half = (
    ArraySpec((2,), "float64"),
    ArraySpec(()),
    ArraySpec((2, 3), "bfloat16"),
  )
  border = (x, [ids, None], {"w": wide, "n": number}, Pair(x, ids), NestedMap(a=x))
  found = in_dtype(border, "bfloat16")
  assert found == (
    half,
    [ids, None],
    {"w": wide, "n": number},
    Pair(half, ids),
    NestedMap(a=half),
  )
  assert [type(part) for part in found] == [type(part) for part in border]
  assert in_dtype(border, "float32") == border
