from typing import Any

import pytest

from tfpipe import params_tree
from tfpipe.params import InstantiableParams, Params
from tfpipe.params_tree import MISSING, Field


def _layer(dim: int) -> InstantiableParams:
  p = InstantiableParams(dict)
  p.Define("dim", dim, "Features.")
  return p


def _walk(value: Any, default: Any = MISSING) -> list[tuple[str, Any]]:
  entries = params_tree.walk("p", Field("p", value, default, ""))
  return [(path, field.default) for path, field in entries]


@pytest.mark.parametrize("value", [None, 1, "x", [1, [2]], {"a": ()}, Params, len])
def test_values_without_params_are_leaves(value: Any) -> None:
  assert not params_tree.holds_params(value)
  assert _walk(value, default=0) == [("p", 0)]


@pytest.mark.parametrize(
  "value", [Params(), [1, Params()], (Params(),), {"a": [{"b": Params()}]}]
)
def test_params_are_found_at_any_depth(value: Any) -> None:
  assert params_tree.holds_params(value)


def test_a_default_is_that_of_the_nearest_definition() -> None:
  outer = Params()
  outer.Define("layer", _layer(3).Set(dim=5), "")
  fields = {
    path: field for path, field in params_tree.walk("p", Field("", outer, 0, ""))
  }
  assert fields["p.layer.dim"] == Field("dim", 5, 3, "Features.")


def test_the_class_of_a_params_that_is_new_has_no_default() -> None:
  assert ("p.cls", dict) in _walk(_layer(1), default=_layer(2))
  assert ("p.cls", MISSING) in _walk(_layer(1), default=None)
  assert ("p.cls", MISSING) in _walk(_layer(1), default=Params())


def test_items_have_the_defaults_at_their_index_or_key() -> None:
  default = [_layer(1), 2]
  assert _walk([_layer(1), 3, 4], default) == [
    ("p", default),
    ("p[0]", default[0]),
    ("p[0].cls", dict),
    ("p[0].dim", 1),
    ("p[1]", 2),
    ("p[2]", MISSING),
  ]
  assert _walk({"k": 3, 1: Params()}, {"k": 2})[1:] == [
    ("p['k']", 2),
    ("p[1]", MISSING),
  ]
  assert _walk((3, Params()), [2])[1:] == [("p[0]", MISSING), ("p[1]", MISSING)]


@pytest.mark.parametrize("key", [None, (1, 2), 0.5, True])
def test_the_key_of_a_dict_of_params_is_part_of_a_path(key: Any) -> None:
  with pytest.raises(
    TypeError, match=r"^p: the key .* of a dict of Params is no str or"
  ):
    _walk({key: Params()})


def test_descend_gives_the_last_params_on_the_way() -> None:
  outer = Params()
  outer.Define("layers", [_layer(3)], "")
  layer = outer.layers[0]
  assert params_tree.descend(outer, (), "") == (outer, outer)
  owner, value = params_tree.descend(outer, ("layers",), "")
  assert owner is outer
  assert value is outer.layers
  owner, value = params_tree.descend(outer, ("layers", -1, "dim"), "")
  assert owner is layer
  assert value == 3
