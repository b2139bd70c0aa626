import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_value_text import VALUES
from tfpipe import params_text
from tfpipe.params import InstantiableParams, Params


class Dense:
  @classmethod
  def Params(cls) -> InstantiableParams:
    p = InstantiableParams(cls)
    p.Define("dim", 3, "Number of features.")
    return p


class Conv:
  pass


class Color(enum.Enum):
  RED = 1


DENSE = f"type/{__name__}/Dense"


def make_params(**values: Any) -> Params:
  p = Params()
  for name, value in values.items():
    p.Define(name, value, f"The {name}.")
  return p


def make_tree() -> Params:
  return make_params(
    name="run",
    train=make_params(max_steps=60, lr=0.1),
    layers=[Dense.Params(), Dense.Params().Set(dim=4)],
    mixed=(Dense.Params(), 1),
    named={"enc": Dense.Params()},
    color=Color.RED,
    note="a: 'b' # c\n\nd",
    nothing=None,
    sizes=[1, 2],
  )


TREE_TEXT = f"""\
color : enum/{__name__}/Color.RED
layers[0].cls : {DENSE}
layers[0].dim : 3
layers[1].cls : {DENSE}
layers[1].dim : 4
mixed[0].cls : {DENSE}
mixed[0].dim : 3
mixed[1] : 1
name : 'run'
named['enc'].cls : {DENSE}
named['enc'].dim : 3
note : "a: 'b' # c\\n\\nd"
nothing : None
sizes : [1, 2]
train.lr : 0.1
train.max_steps : 60
"""


# Text.


def test_the_text_has_a_sorted_line_for_every_value() -> None:
  assert make_tree().ToText() == TREE_TEXT


def test_the_text_does_not_depend_on_the_order_of_definition() -> None:
  assert (
    make_params(b=1, a=2).ToText() == make_params(a=2, b=1).ToText() == "a : 2\nb : 1\n"
  )


def test_items_of_long_lists_stay_in_order() -> None:
  text = make_params(l=[Dense.Params() for _ in range(11)]).ToText()
  assert [line.split(".")[0] for line in text.splitlines()[::2]] == [
    f"l[{i}]" for i in range(11)
  ]


def test_params_without_keys_have_no_text() -> None:
  assert Params().ToText() == ""
  assert make_params(sub=Params(), l=[]).ToText() == "l : []\n"


def test_a_value_without_text_is_refused_with_its_path() -> None:
  p = make_params(train=make_params(fn=lambda x: x))
  for write in (p.ToText, p.Describe):
    with pytest.raises(TypeError, match=r"^train\.fn holds <function .* no text form"):
      write()


def test_changed_text_has_only_what_differs_from_its_definition() -> None:
  p = make_tree()
  assert p.ToText(changed_only=True) == "layers[1].dim : 4\n"
  p.Set(**{"train.lr": 0.5, "name": "x", "sizes[0]": 5, "nothing": Dense.Params()})
  p.layers.append(Dense.Params())
  assert p.ToText(changed_only=True) == (
    f"layers[1].dim : 4\nlayers[2].cls : {DENSE}\nname : 'x'\n"
    f"nothing.cls : {DENSE}\nsizes : [5, 2]\ntrain.lr : 0.5\n"
  )
  p.Set(layers=[], name="run")
  assert "layers : []\n" in p.ToText(changed_only=True)
  assert "name" not in p.ToText(changed_only=True)


def test_changed_text_turns_the_defaults_into_the_params() -> None:
  p = make_tree().Set(**{"train.lr": 0.5, "note": "", "mixed[1]": 7, "sizes": []})
  assert make_tree().FromText(p.ToText(changed_only=True)) == p


def test_a_class_set_anew_is_changed() -> None:
  p = Dense.Params().Set(cls=Conv)
  assert p.ToText(changed_only=True) == f"cls : type/{__name__}/Conv\n"


# From text.


def test_text_sets_what_it_names() -> None:
  p = make_tree()
  same = p.FromText("""
    # a comment : 1
    train.lr : 1

    name:x: y # no comment
    layers[0].dim:7
    mixed[1] : 2
    named['enc'].dim : 8
    color : RED
    nothing : [1, 'a']
  """)
  assert same is p
  assert p == make_tree().Set(
    **{
      "train.lr": 1.0,
      "name": "x: y # no comment",
      "layers[0].dim": 7,
      "mixed[1]": 2,
      "named['enc'].dim": 8,
      "nothing": [1, "a"],
    }
  )
  assert type(p.train.lr) is float
  assert type(p.mixed) is tuple


def test_a_quoted_string_goes_over_lines() -> None:
  p = make_params(a="", b="", c=0)
  p.FromText("a : 'one  \n\n# two : 3\n it\\'s'  \nb : \"x\n'y'\"\nc : 4\n")
  assert p.a == "one  \n\n# two : 3\n it's"
  assert (p.b, p.c) == ("x\n'y'", 4)


def test_line_ends_of_other_systems_are_accepted() -> None:
  p = make_params(a="", b="", c=0).FromText("a : x\r\nb : 'y'\r\nc : 4\r\n")
  assert (p.a, p.b, p.c) == ("x", "y", 4)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("name = 'x'", r"^line 1: expected 'key : value', got \"name = 'x'\"$"),
    ("\n# c\nname", "^line 3: expected 'key : value', got 'name'"),
    ("na me : 1", "^line 1: expected 'key : value'"),
    (": 1", "^line 1: expected 'key : value'"),
    ("name : x\nname : y", "^line 2: name is given twice$"),
    ("name : 'x\ntrain.lr : 1", "^line 1: the string of name has no closing quote$"),
    ("train.max_steps : 1.5", r"^train\.max_steps takes an int; got '1\.5'$"),
    ("train.lr :", r"^train\.lr takes a float; got ''$"),
    ("train : 1", r"^train is a Params; set one of its keys: max_steps, lr; got '1'$"),
    ("layers : [1]", r"^layers\[0\] takes a value of type InstantiableParams; got 1$"),
    ("layers[0].cls : Dense", r"^layers\[0\]\.cls: Dense is not a literal"),
  ],
)
def test_text_of_a_wrong_form_is_refused_and_changes_nothing(
  text: str, message: str
) -> None:
  p = make_tree()
  with pytest.raises(ValueError, match=message):
    p.FromText(text)
  with pytest.raises(ValueError, match=r"line|takes|is a Params|literal|quote"):
    p.FromText(f"sizes : [9]\n{text}")
  assert p == make_tree()


def test_an_unknown_key_is_refused_at_its_level_and_changes_nothing() -> None:
  p = make_tree()
  with pytest.raises(
    AttributeError, match=r"train has no parameter 'max_stepz'; did yo"
  ):
    p.FromText("name : x\ntrain.max_stepz : 60")
  assert p == make_tree()


def test_one_value_is_set_from_text() -> None:
  p = make_tree()
  assert p.SetFromText("train.lr", "3") is p
  p.SetFromText("layers[-1].dim", "9").SetFromText("sizes", "3,4,5")
  p.SetFromText("sizes[0]", "7").SetFromText("nothing", "text")
  assert (p.train.lr, p.layers[1].dim, p.nothing) == (3.0, 9, "text")
  assert p.sizes == [7, 4, 5]
  with pytest.raises(ValueError, match=r"^sizes\[0\] takes an int; got 'x'"):
    p.SetFromText("sizes[0]", "x")


def test_the_type_comes_from_the_default_when_the_value_is_none() -> None:
  p = make_params(dim=3).Set(dim=None)
  p.SetFromText("dim", "4")
  assert p.dim == 4
  with pytest.raises(ValueError, match="dim takes an int; got 'None'"):
    p.SetFromText("dim", "None")


def test_a_params_that_may_be_absent_can_be_set_to_none_only() -> None:
  p = make_params(dev=None).Set(dev=make_params(batch_size=1))
  with pytest.raises(
    ValueError, match="dev is a Params; set one of its keys: batch_siz"
  ):
    p.SetFromText("dev", "1")
  assert p.SetFromText("dev", " None ").dev is None
  with pytest.raises(ValueError, match="train is a Params; set one of its keys"):
    make_tree().SetFromText("train", "None")


_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,3}", fullmatch=True)
_NAMES = _NAMES.filter(lambda name: name != "cls" and not name.startswith("__"))


def _make(values: dict[str, Any]) -> Params:
  return make_params(**{name: value for name, value in values.items()})


TREES = st.recursive(
  st.dictionaries(_NAMES, VALUES, max_size=3).map(_make),
  lambda inner: st.dictionaries(
    _NAMES,
    inner
    | VALUES
    | st.lists(inner, max_size=3)
    | st.tuples(inner, VALUES)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=2),
    max_size=3,
  ).map(_make),
  max_leaves=6,
)


@given(TREES)
def test_every_tree_is_read_back_equal_over_itself(p: Params) -> None:
  text = p.ToText()
  assert p.Copy().FromText(text) == p
  assert p.Copy().FromText(text).ToText() == text
  assert p.Copy() == p


@given(TREES)
def test_every_tree_is_read_back_over_one_whose_values_are_none(p: Params) -> None:
  emptied = p.Copy()
  for path in params_text.read(p.ToText()):
    emptied.Set(**{path: None})
  assert emptied.FromText(p.ToText()) == p


@given(TREES)
def test_equal_trees_have_no_difference(p: Params) -> None:
  assert p.TextDiff(p.Copy()) == ""


@given(TREES, TREES)
def test_trees_that_differ_have_a_difference(a: Params, b: Params) -> None:
  diff = a.TextDiff(b)
  assert (diff == "") == (a == b)
  swapped = diff.translate(str.maketrans("<>", "><"))
  if "<" not in a.ToText() + b.ToText() and ">" not in a.ToText() + b.ToText():
    assert sorted(b.TextDiff(a).split("\n")) == sorted(swapped.split("\n"))


# Help.


def test_the_help_has_every_key_with_description_and_changed_default() -> None:
  p = make_params(
    train=make_params(lr=0.1, max_steps=60), body=[Dense.Params()], dev=None
  )
  p.Set(**{"train.lr": 0.5, "dev": "x"})
  assert p.Describe() == (
    "body\n"
    "    The body.\n"
    "body[0]\n"
    f"body[0].cls : {DENSE}\n"
    "    What Instantiate calls with these Params.\n"
    "body[0].dim : 3\n"
    "    Number of features.\n"
    "dev : 'x' (default None)\n"
    "    The dev.\n"
    "train\n"
    "    The train.\n"
    "train.lr : 0.5 (default 0.1)\n"
    "    The lr.\n"
    "train.max_steps : 60\n"
    "    The max_steps.\n"
  )


def test_what_has_no_default_is_shown_without_one() -> None:
  p = make_params(body=[])
  p.body.append(Dense.Params())
  assert f"body[0].cls : {DENSE}\n    What" in p.Describe()


def test_long_descriptions_are_indented_whole() -> None:
  p = Params()
  p.Define("a", 1, "First.\n\n    Second.")
  p.Define("b", 2, "")
  assert p.Describe() == "a : 1\n    First.\n\n    Second.\nb : 2\n"


def test_a_default_that_was_a_params_is_named_so() -> None:
  p = make_params(train=make_params(lr=0.1)).Set(train=None)
  assert p.Describe() == "train : None (default Params)\n    The train.\n"
  assert Params().Describe() == ""


# Differences.


def test_differences_show_both_sides_and_nested_ones() -> None:
  a = make_params(x=1, same=2, sub=make_params(y="a", deep=make_params(z=True)))
  b = make_params(
    x=3, same=2, sub=make_params(y="b", deep=make_params(z=False)), new=[]
  )
  assert a.TextDiff(b) == (
    "< new: []\n"
    "? sub:\n"
    "?   deep:\n"
    ">     z: True\n"
    "<     z: False\n"
    ">   y: 'a'\n"
    "<   y: 'b'\n"
    "> x: 1\n"
    "< x: 3\n"
  )


def test_sequences_differ_item_by_item() -> None:
  a = make_params(l=[1, 2, [3, 4]], t=(1,), k=[1])
  b = make_params(l=[1, 5, [3, 6], 7], t=(), k=(1,))
  assert a.TextDiff(b) == (
    "> k: [1]\n"
    "< k: (1,)\n"
    "> l[1]: 2\n"
    "< l[1]: 5\n"
    "> l[2][1]: 4\n"
    "< l[2][1]: 6\n"
    "< l[3]: 7\n"
    "> t[0]: 1\n"
  )


def test_params_in_sequences_differ_key_by_key() -> None:
  a = make_params(l=[Dense.Params(), Dense.Params()])
  b = make_params(l=[Dense.Params().Set(dim=4)])
  assert a.TextDiff(b) == (
    f"? l[0]:\n>   dim: 3\n<   dim: 4\n> l[1].cls: {DENSE}\n> l[1].dim: 3\n"
  )


def test_dicts_differ_key_by_key() -> None:
  a = make_params(d={"same": 1, "x": 2, "a": 3})
  b = make_params(d={"same": 1, "x": 4, 5: None})
  assert a.TextDiff(b) == "> d['x']: 2\n< d['x']: 4\n> d['a']: 3\n< d[5]: None\n"


def test_a_params_on_one_side_is_listed_whole() -> None:
  a = make_params(sub=make_params(x=1, y=make_params(z=2)), empty=Params())
  b = make_params(sub=None)
  assert a.TextDiff(b) == "> empty: {}\n> sub.x: 1\n> sub.y.z: 2\n< sub: None\n"


def test_equal_params_have_no_difference() -> None:
  assert make_tree().TextDiff(make_tree()) == ""
