"""The text of a Params with the type of every value."""

import pytest
from hypothesis import given

from tests.test_params_text import DENSE, TREES, Color, Dense, make_params, make_tree
from tfpipe import params_text
from tfpipe.params import Params


def test_types_follow_the_values_after_a_blank_line() -> None:
  p = make_params(color=Color.RED, kind=Dense, l=[1], lr=0.1, none=None, note="\n\n")
  assert p.ToTextWithTypes() == (
    p.ToText()
    + """
color : Color
kind : type
l : list
lr : float
none : NoneType
note : str
"""
  )


@pytest.mark.parametrize("text", [Params().ToTextWithTypes(), "", "\n \n"])
def test_params_without_keys_have_no_types(text: str) -> None:
  assert Params().FromTextWithTypes(text) == Params()


def test_a_type_decides_instead_of_the_value_before() -> None:
  p = make_params(scale=None, word="1", sub=Params(), l=[1], flag=True)
  text = "scale : 1\nword : 2\nsub : None\nl : ['a', None]\nflag : 1\n"
  types = {"scale": "float", "word": "int", "sub": "NoneType", "l": "tuple"}
  same = p.FromText(text, types)
  assert same is p
  assert (p.scale, p.word, p.sub, p.l, p.flag) == (1.0, 2, None, ("a", None), True)
  assert type(p.scale) is float


@pytest.mark.parametrize(
  ("value", "kind", "message"),
  [
    ("1.5", "int", r"^a takes an int; got '1\.5'$"),
    ("2", "bool", r"^a takes a bool .*; got '2'$"),
    ("[1]", "dict", r"^a takes a value of type dict; got \[1\]$"),
    ("1", "NoneType", r"^a takes a value of type NoneType; got '1'$"),
    (DENSE, "Color", r"^a takes a value of type Color; got 'type/"),
    ("1", "flaot", r"^a: the type 'flaot' is none of NoneType, .*did you mean 'float'"),
  ],
)
def test_a_value_that_is_not_of_its_type_is_refused(
  value: str, kind: str, message: str
) -> None:
  p = make_params(a="x", b=0)
  with pytest.raises(ValueError, match=message):
    p.FromText(f"b : 1\na : {value}", {"a": kind})
  assert p == make_params(a="x", b=0)


def test_a_type_for_what_the_text_does_not_set_is_refused() -> None:
  with pytest.raises(
    ValueError, match=r"^naem has a type, but the text .*; did you mean 'name'\?$"
  ):
    make_tree().FromText("name : x", {"naem": "str"})


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("name : 'x'\n", "^expected lines 'key : value', a blank line, lines 'key : type'"),
    ("name : 'x'\n\nname", "^after the last blank line, .*: line 1: expected 'key :"),
  ],
)
def test_text_without_types_is_refused(text: str, message: str) -> None:
  with pytest.raises(ValueError, match=message):
    make_tree().FromTextWithTypes(text)


@given(TREES)
def test_every_tree_is_read_back_with_its_types_over_anything(p: Params) -> None:
  text = p.ToTextWithTypes()
  for other in (None, "text", 1.5, [b"?"], {"a": 1}, Color.RED, Dense):
    changed = p.Copy()
    for path in params_text.read(p.ToText()):
      changed.Set(**{path: other})
    assert changed.FromTextWithTypes(text) == p
    assert changed.ToTextWithTypes() == text
