"""Parts of NestedMaps, their unions, and where these differ from Lingvo's."""

from collections import namedtuple

import pytest

from tfpipe.nested_map import NestedMap

Point = namedtuple("Point", ["x", "y"])


def _example() -> NestedMap:
  return NestedMap(b=[1, NestedMap(d=2, c=3)], a=NestedMap(e=(4, 5)), z=None)


def test_a_slice_holds_the_values_at_the_paths_and_nothing_else() -> None:
  leaf = object()
  m = NestedMap(a=NestedMap(x=1, y=NestedMap(z=leaf), q=2), l=[3, {"k": 4}, 5], n=None)
  assert m.GetSlice(["a.y", "n"]) == {"a": {"y": {"z": leaf}}, "n": None}
  assert m.GetSlice(["l[1].k", "l[0]", "a.x"]) == {"a": {"x": 1}, "l": [3, {"k": 4}]}
  assert m.GetSlice(["a.y.z", "a", "a.x"]) == {"a": m.a}
  assert m.GetSlice([]) == {}
  assert type(m.GetSlice([])) is NestedMap


def test_a_slice_shares_leaves_and_no_structure() -> None:
  m = NestedMap(a=NestedMap(x=object()))
  part = m.GetSlice(["a"])
  assert part.a.x is m.a.x
  part.a.y = 1
  assert "y" not in m.a


def test_a_slice_of_items_of_a_tuple_is_a_list() -> None:
  assert _example().GetSlice(["a.e[0]"]) == {"a": {"e": [4]}}
  assert _example().GetSlice(["a.e"]) == {"a": {"e": (4, 5)}}


def test_a_slice_refuses_what_is_not_there_and_gaps() -> None:
  m = _example()
  with pytest.raises(KeyError, match=r"a\.f: there is no key 'f'; known: e"):
    m.GetSlice(["a.e", "a.f"])
  with pytest.raises(IndexError, match=r"b\[1\]: \[1\] is beyond a list of 0 items"):
    m.GetSlice(["b[1]"])
  with pytest.raises(TypeError, match=r"z\.q: 'q' cannot be looked up"):
    m.GetSlice(["z.q"])


def test_update_shares_no_structure() -> None:
  m, other = NestedMap(a=NestedMap()), NestedMap(a={"b": {}}, c=[1])
  m.Update(other)
  m.a.b["x"] = 1
  m.c.append(2)
  assert other == {"a": {"b": {}}, "c": [1]}


def test_a_union_has_the_leaves_of_both_and_changes_neither() -> None:
  a, b = (
    NestedMap(x=1, sub=NestedMap(y=2, l=[3, 4])),
    {"sub": {"y": 5, "l": [6]}, "z": 7},
  )
  assert a.Union(b) == {"x": 1, "sub": {"y": 5, "l": [6]}, "z": 7}
  assert type(a.Union(b).sub) is NestedMap
  assert a == {"x": 1, "sub": {"y": 2, "l": [3, 4]}}
  assert b == {"sub": {"y": 5, "l": [6]}, "z": 7}
  a.Union(b).sub.l.append(8)
  assert b["sub"]["l"] == [6]


def test_a_tuple_is_walked_where_lingvo_takes_it_for_a_leaf() -> None:
  m = NestedMap(t=(1, Point(2, 3)))
  assert m.Flatten() == [1, 2, 3]
  assert m.Transform(str) == {"t": ("1", Point("2", "3"))}
  assert m.IsCompatible(NestedMap(t=(4, Point(5, 6))))
  assert not m.IsCompatible(NestedMap(t=7))
