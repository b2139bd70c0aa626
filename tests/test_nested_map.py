import copy
import pickle
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.nested_map import NestedMap

Point = namedtuple("Point", ["x", "y"])

_KEYS = st.from_regex(r"[a-d][a-d0-9_]{0,2}", fullmatch=True)
_NESTS = st.recursive(
  st.none() | st.integers() | st.text(max_size=3),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(_KEYS, inner, max_size=3).map(NestedMap)
  ),
  max_leaves=12,
)
_MAPS = st.dictionaries(_KEYS, _NESTS, max_size=4).map(NestedMap)


def _example() -> NestedMap:
  return NestedMap(b=[1, NestedMap(d=2, c=3)], a=NestedMap(e=(4, 5)), z=None)


# Attribute access and keys.


def test_items_are_attributes_and_attributes_items() -> None:
  m = NestedMap(x=1)
  m.y = 2
  m["z"] = 3
  assert (m["x"], m["y"], m.z) == (1, 2, 3)
  del m.x
  assert list(m) == ["y", "z"]
  assert isinstance(m, dict)
  assert {"y", "z", "Flatten"} <= set(dir(m))


def test_a_missing_attribute_names_the_nearest_key() -> None:
  m = NestedMap(weight=1, bias=2)
  with pytest.raises(AttributeError, match="no key 'wieght'; did you mean 'weight'"):
    m.wieght  # noqa: B018
  with pytest.raises(AttributeError, match="no key 'q'; known: bias, weight"):
    m.q  # noqa: B018
  with pytest.raises(AttributeError, match="no key 'bais'; did you mean 'bias'"):
    del m.bais
  assert not hasattr(m, "__tf_flatten__")


def test_a_missing_item_is_a_key_error_as_in_any_dict() -> None:
  with pytest.raises(KeyError):
    NestedMap()["x"]


@pytest.mark.parametrize("key", ["keys", "items", "update", "Flatten", "__class__"])
def test_names_of_methods_are_refused_as_keys(key: str) -> None:
  m = NestedMap()
  with pytest.raises(ValueError, match=f"'{key}' is a reserved name"):
    m[key] = 1
  with pytest.raises(ValueError, match="is a reserved name"):
    setattr(m, key, 1)
  with pytest.raises(ValueError, match="is a reserved name"):
    NestedMap({key: 1})


@pytest.mark.parametrize("key", ["", "1a", "a b", "a.b", "a-b", "é", "a\n"])
def test_keys_are_identifiers(key: str) -> None:
  with pytest.raises(ValueError, match="is not an identifier"):
    NestedMap({key: 1})


def test_keys_are_strings() -> None:
  with pytest.raises(TypeError, match="a key of a NestedMap is a str; got 1"):
    NestedMap({1: 2})


def test_no_method_of_dict_goes_around_the_check_of_keys() -> None:
  m = NestedMap()
  with pytest.raises(ValueError, match="reserved"):
    m.update(keys=1)
  with pytest.raises(ValueError, match="reserved"):
    m.setdefault("keys", 1)
  with pytest.raises(ValueError, match="reserved"):
    m |= {"keys": 1}
  with pytest.raises(ValueError, match="reserved"):
    m | {"keys": 1}
  assert m == {}


def test_dict_methods_keep_the_type() -> None:
  m = NestedMap(a=1)
  merged = m | {"b": 2}
  assert type(merged) is NestedMap
  assert merged == {"a": 1, "b": 2}
  assert m == {"a": 1}
  same = m
  same |= {"c": 3}
  assert same is m
  assert m == {"a": 1, "c": 3}
  assert type(m.copy()) is NestedMap
  assert m.copy() is not m
  assert m.setdefault("a", 5) == 1
  assert m.setdefault("d", 5) == 5
  assert m.d == 5


def test_it_is_made_from_what_makes_a_dict() -> None:
  assert NestedMap({"a": 1}, b=2) == {"a": 1, "b": 2}
  assert NestedMap([("a", 1)]) == {"a": 1}
  assert NestedMap() == {}


def test_it_is_rebuilt_from_pairs_as_tf_nest_does() -> None:
  m = _example()
  again = type(m)((key, m[key]) for key in sorted(m))
  assert type(again) is NestedMap
  assert again == m


# Access by path.


def test_paths_reach_into_maps_lists_and_tuples() -> None:
  m = _example()
  assert m.GetItem("b[1].c") == 3
  assert m.GetItem("a.e[1]") == 5
  assert m.Get("b[-1].d") == 2
  assert m.Get("b[-2]") == 1
  assert m.Get("z", default=7) is None
  assert m.Get("a.q") is None
  assert m.Get("a.q", default=7) == 7


def test_has_tells_whether_a_path_leads_somewhere() -> None:
  m = _example()
  assert m.Has("b[1].c")
  assert m.Has("z")
  for path in ["q", "a.q", "b[2]", "b[1].q", "z.q", "b.q", "a[0]"]:
    assert not m.Has(path), path


def test_a_path_that_leads_nowhere_says_where_it_ends() -> None:
  m = _example()
  with pytest.raises(KeyError, match=r"a\.f: there is no key 'f'; known: e"):
    m.GetItem("a.f")
  with pytest.raises(IndexError, match=r"b\[2\]: \[2\] is outside a list of 2 items"):
    m.GetItem("b[2]")
  for path, message in [
    ("z.q", r"z\.q: 'q' cannot be looked up .* NoneType"),
    ("z[0]", r"z\[0\]: 0 cannot be looked up .* NoneType"),
    ("b.q", r"b\.q: 'q' cannot be looked up .* list"),
  ]:
    with pytest.raises(TypeError, match=message):
      m.GetItem(path)
  with pytest.raises(ValueError, match="is not a path"):
    m.GetItem("a..b")


def test_set_makes_the_maps_and_lists_on_the_way() -> None:
  m = NestedMap()
  m.Set("a.b.c", 1)
  m.Set("a.l[0].d", 2)
  m.Set("a.l[1]", 3)
  m.Set("a.l[0].e", 4)
  m.Set("a.b.c", 5)
  m.Set("a.l[1]", 6)
  assert m == {"a": {"b": {"c": 5}, "l": [{"d": 2, "e": 4}, 6]}}
  assert type(m.a.b) is NestedMap
  assert type(m.a.l[0]) is NestedMap


def test_set_beyond_the_end_of_a_list_changes_nothing() -> None:
  m = NestedMap(l=[1])
  with pytest.raises(IndexError, match=r"l\[2\]: \[2\] is beyond a list of 1 items"):
    m.Set("l[2]", 0)
  with pytest.raises(IndexError, match=r"a\.b\[1\]: \[1\] is beyond a list of 0 items"):
    m.Set("a.b[1]", 0)
  assert m == {"l": [1]}


def test_set_through_a_leaf_or_tuple_is_refused() -> None:
  m = NestedMap(x=1, t=(1, 2), l=[1])
  with pytest.raises(TypeError, match=r"l\.y: 'y' cannot be set .* type list"):
    m.Set("l.y", 0)
  with pytest.raises(TypeError, match=r"x\.y: 'y' cannot be set .* type int"):
    m.Set("x.y", 0)
  with pytest.raises(TypeError, match=r"t\[0\]: 0 cannot be set .* type tuple"):
    m.Set("t[0]", 0)


def test_set_checks_new_keys() -> None:
  with pytest.raises(ValueError, match="'keys' is a reserved name"):
    NestedMap().Set("a.keys", 1)


# All leaves.


def test_leaves_come_in_sorted_key_order_with_their_paths() -> None:
  m = _example()
  items = [("a.e[0]", 4), ("a.e[1]", 5), ("b[0]", 1), ("b[1].c", 3), ("b[1].d", 2)]
  items += [("z", None)]
  assert m.FlattenItems() == items
  assert m.Flatten() == [value for _, value in items]


def test_every_listed_path_leads_to_its_leaf() -> None:
  m = NestedMap(d={"plain key": [1]}, e={"it's": NestedMap(x=1)}, f={3: 2})
  for path, leaf in m.FlattenItems():
    assert m.GetItem(path) == leaf


def test_pack_puts_values_in_the_place_of_leaves() -> None:
  packed = _example().Pack("uvwxyz")
  assert packed == {"b": ["w", {"d": "y", "c": "x"}], "a": {"e": ("u", "v")}, "z": "z"}
  assert type(packed.b[1]) is NestedMap
  assert list(packed) == ["b", "a", "z"]  # the order of insertion is kept


@pytest.mark.parametrize("count", [0, 5, 7])
def test_pack_refuses_another_number_of_values(count: int) -> None:
  with pytest.raises(ValueError, match=f"6 leaves cannot take {count} values"):
    _example().Pack([0] * count)


def test_transform_maps_leaves_and_keeps_types() -> None:
  m = NestedMap(p=Point(1, 2), d={"k": [3]}, t=(4,), n=NestedMap(x=5))
  new = m.Transform(lambda x: 10 * x)
  assert new == {"p": Point(10, 20), "d": {"k": [30]}, "t": (40,), "n": {"x": 50}}
  assert type(new.p) is Point
  assert type(new.d) is dict
  assert m.n.x == 5


def test_transform_with_key_sees_the_path() -> None:
  m = NestedMap(a=[1, 2], b=3)
  assert m.TransformWithKey(lambda k, v: (k, v)) == {
    "a": [("a[0]", 1), ("a[1]", 2)],
    "b": ("b", 3),
  }


def test_filter_drops_leaves_and_what_gets_empty() -> None:
  m = NestedMap(a=NestedMap(x=1, y=NestedMap(z=2)), l=[1, 2, 3], t=(2, 2), e=[], n=2)
  odd = m.Filter(lambda x: x % 2 == 1)
  assert odd == {"a": {"x": 1}, "l": [1, 3], "e": []}
  assert m.Filter(lambda _: False) == {"e": []}
  none = NestedMap(a=1).Filter(lambda _: False)
  assert none == {}
  assert type(none) is NestedMap


def test_filter_by_key_sees_the_path() -> None:
  m = NestedMap(enc=NestedMap(w=1, b=2), dec=NestedMap(w=3))
  kept = m.FilterKeyVal(lambda key, value: key.endswith(".w") and value < 3)
  assert kept == {"enc": {"w": 1}}


def test_maps_with_one_structure_are_compatible() -> None:
  m = NestedMap(a=1, b=[2, (3,)])
  assert m.IsCompatible(NestedMap(b=["x", (None,)], a="y"))
  for other in [
    NestedMap(a=1),
    NestedMap(a=1, c=[2, (3,)]),
    NestedMap(a=1, b=[2]),
    NestedMap(a=1, b=[2, [3]]),
    NestedMap(a=[1], b=[2, (3,)]),
  ]:
    assert not m.IsCompatible(other)
    assert not other.IsCompatible(m)


def test_update_merges_maps_and_replaces_all_else() -> None:
  m = NestedMap(a=NestedMap(x=1, y=NestedMap(z=2)), l=[1, 2], k=3)
  m.Update({"a": {"y": {"w": 5}, "x": 6}, "l": [7], "new": {"q": 8}})
  assert m == {
    "a": {"x": 6, "y": {"z": 2, "w": 5}},
    "l": [7],
    "k": 3,
    "new": {"q": 8},
  }
  assert type(m.a.y) is NestedMap
  assert m.Update({"a": 1}) is m
  assert m.a == 1


def test_update_refuses_bad_keys_at_any_depth() -> None:
  with pytest.raises(ValueError, match="'keys' is a reserved name"):
    NestedMap(a=NestedMap()).Update({"a": {"keys": 1}})


# Copies and conversions.


def test_deep_copy_copies_the_structure_and_shares_the_leaves() -> None:
  leaf = object()
  m = NestedMap(a=[NestedMap(x=leaf)])
  new = m.DeepCopy()
  assert new.a[0].x is leaf
  assert new.a is not m.a
  assert new.a[0] is not m.a[0]


def test_the_copy_module_and_pickle_work() -> None:
  m = NestedMap(a=[NestedMap(x=[1])], leaf={1, 2})
  for new in [copy.copy(m), copy.deepcopy(m), pickle.loads(pickle.dumps(m))]:
    assert new == m
    assert type(new) is NestedMap
    assert type(new.a[0]) is NestedMap
  assert copy.copy(m).a is m.a
  assert copy.deepcopy(m).leaf is not m.leaf


def test_nested_dicts_are_converted_both_ways() -> None:
  plain = {"a": [{"b": 1}, ({"c": 2},)], "p": Point({"d": 3}, 4), "e": {}}
  m = NestedMap.FromNestedDict(plain)
  assert m == plain
  assert type(m.a[1][0]) is NestedMap
  assert m.p.x.d == 3
  assert type(m.e) is NestedMap
  back = m.ToNestedDict()
  assert back == plain
  assert type(back) is dict
  assert type(back["p"].x) is dict
  assert NestedMap.FromNestedDict([{"a": 1}])[0].a == 1


def test_the_debug_string_has_a_line_a_leaf() -> None:
  assert NestedMap(long_name=[1], b="x").DebugString() == (
    "b             'x'\nlong_name[0]  1"
  )
  assert NestedMap().DebugString() == ""


def test_the_debug_string_has_shapes_instead_of_numbers() -> None:
  class Array:
    shape = (2, 3)
    dtype = "float32"

  class Typed:
    dtype = "int32"

    def __repr__(self) -> str:
      return "Typed()"

  class Shaped(Typed):
    dtype = property()
    shape = (1,)

  assert NestedMap(a=Typed()).DebugString() == "a  Typed()"
  assert NestedMap(a=Shaped()).DebugString() == "a  Typed()"
  assert NestedMap(w=Array()).DebugString() == "w  float32 (2, 3)"


@given(_MAPS)
def test_pack_undoes_flatten(m: NestedMap) -> None:
  assert m.Pack(m.Flatten()) == m


@given(_MAPS)
def test_paths_of_all_leaves_differ_and_lead_to_them(m: NestedMap) -> None:
  items = m.FlattenItems()
  assert len({path for path, _ in items}) == len(items)
  assert [m.GetItem(path) for path, _ in items] == m.Flatten()


@given(_MAPS, _MAPS)
def test_compatible_maps_exchange_their_leaves(a: NestedMap, b: NestedMap) -> None:
  if a.IsCompatible(b):
    assert a.Pack(b.Flatten()) == b
    assert b.Pack(a.Flatten()) == a
  assert a.IsCompatible(a.Transform(str))


@given(_MAPS)
def test_filters_that_keep_all_change_nothing(m: NestedMap) -> None:
  assert m.Filter(lambda _: True) == m


@given(st.dictionaries(_KEYS, _NESTS, max_size=4))
def test_conversion_there_and_back_is_the_identity(plain: dict[str, Any]) -> None:
  assert NestedMap.FromNestedDict(plain).ToNestedDict() == plain
