import abc
import collections
import enum
import functools
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.value_text import format_value, parse


class Color(enum.Enum):
  RED = 1
  GREEN = 2


class Size(enum.Enum):
  SMALL = 1


class Access(enum.Flag):
  READ = 1
  WRITE = 2


class Dense:
  class Inner:
    pass

  @classmethod
  def Params(cls) -> None:
    pass


class Abstract(abc.ABC):
  @abc.abstractmethod
  def FProp(self) -> None: ...


def relu() -> None:
  pass


_SCALARS = st.none() | st.booleans() | st.integers() | st.text()
_SCALARS |= st.floats(allow_nan=False)
_SCALARS |= st.sampled_from([Color.RED, Dense, Dense.Inner, relu, len, int, Abstract])
VALUES = st.recursive(
  _SCALARS,
  lambda inner: (
    st.lists(inner, max_size=4)
    | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
  ),
  max_leaves=10,
)


def read(text: str, current: Any, default: Any = "same") -> Any:
  return parse(text, current, current if default == "same" else default, "a.b")


# Writing.


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (None, "None"),
    (True, "True"),
    (3, "3"),
    (0.1, "0.1"),
    (1e-30, "1e-30"),
    (-math.inf, "-inf"),
    ("x", "'x'"),
    ("it's", '"it\'s"'),
    ("a\n\nb # : c", r"'a\n\nb # : c'"),
    ([], "[]"),
    ([1, "x"], "[1, 'x']"),
    ((), "()"),
    ((1,), "(1,)"),
    ((1, (2.0, None)), "(1, (2.0, None))"),
    ({"a": [1], 2: ()}, "{'a': [1], 2: ()}"),
    (Dense, f"type/{__name__}/Dense"),
    (Dense.Inner, f"type/{__name__}/Dense.Inner"),
    (Dense.Params, f"type/{__name__}/Dense.Params"),
    (relu, f"type/{__name__}/relu"),
    (math.sqrt, "type/math/sqrt"),
    (dict, "type/builtins/dict"),
    (Color.RED, f"enum/{__name__}/Color.RED"),
    ([Dense, Color.GREEN], f"[type/{__name__}/Dense, enum/{__name__}/Color.GREEN]"),
  ],
)
def test_a_value_is_written_with_its_type_and_read_back(value: Any, text: str) -> None:
  assert format_value(value, "a.b") == text
  again = read(text, value)
  assert again == value
  assert type(again) is type(value)
  assert read(text, None) == value


def test_nan_is_read_back_as_nan() -> None:
  assert math.isnan(read(format_value(math.nan, ""), 0.0))
  assert math.isnan(read("[nan]", None)[0])


@pytest.mark.parametrize(
  "value",
  [
    3 + 4j,
    b"x",
    {1, 2},
    range(3),
    object(),
    pathlib.PurePath("x"),
    collections.OrderedDict(a=1),
    collections.namedtuple("Point", "x")(1),
    functools.partial(int, base=2),
    lambda x: x,
    type("Local", (), {}),
    type("Str", (str,), {})("x"),
    Access.READ | Access.WRITE,
    functools.wraps(relu)(lambda: None),
    pytest,
    [[1, 2], [object()]],
    np.arange(3),
    np.float32(0.5),
  ],
)
def test_a_value_without_a_text_is_refused(value: Any) -> None:
  with pytest.raises(
    TypeError, match=r"^a\.b.* holds .*no text form; allowed are None,"
  ):
    format_value(value, "a.b")


def test_a_refused_item_is_named() -> None:
  with pytest.raises(
    TypeError, match=r"^rates\['x'\]\[1\] holds 1j, which has no text"
  ):
    format_value({"x": [0, 1j]}, "rates")


# Properties.


@given(VALUES)
def test_every_value_is_read_back_equal_over_itself(value: Any) -> None:
  again = parse(format_value(value, ""), value, value, "")
  assert again == value
  assert type(again) is type(value)


@given(VALUES)
def test_every_value_is_read_back_equal_over_none(value: Any) -> None:
  text = format_value(value, "")
  assert "\n" not in text
  again = parse(text, None, None, "")
  assert again == value
  assert repr(again) == repr(value)


@given(st.text(), st.text())
def test_a_quoted_string_is_read_back_over_any_string(value: str, current: str) -> None:
  assert parse(format_value(value, ""), current, current, "") == value


@given(st.text(alphabet="'\"\\\nx[](){}:#1"))
def test_any_text_is_read_or_refused_with_the_path(text: str) -> None:
  for current in [None, True, 1, 0.5, "x", [1], {"a": 1}, Dense, Color.RED]:
    message = ""
    try:
      parse(text, current, current, "a.b")
    except ValueError as error:
      message = str(error)
    assert message.startswith("a.b") or not message
