import math
import pathlib
from typing import Any

import pytest

from tests import test_value_text
from tests.test_value_text import Abstract, Color, Dense, read, relu

MODULE = test_value_text.__name__


# Reading by type.


@pytest.mark.parametrize(
  "text", ["true", "True", "TRUE", "yes", "Yes", "1", "on", " ON "]
)
def test_words_for_true(text: str) -> None:
  assert read(text, False) is True


@pytest.mark.parametrize("text", ["false", "False", "no", "NO", "0", "off"])
def test_words_for_false(text: str) -> None:
  assert read(text, True) is False


@pytest.mark.parametrize("text", ["", "2", "t", "nope", "None", "1.0", "'true'", "y"])
def test_a_bool_takes_nothing_else(text: str) -> None:
  message = r"a\.b takes a bool \(true/false, yes/no, on/off, 1/0\); got "
  with pytest.raises(ValueError, match=message):
    read(text, True)


@pytest.mark.parametrize(
  ("text", "value"),
  [("60", 60), ("-1", -1), ("+7", 7), ("1_000", 1000), ("0x10", 16), (" 5 ", 5)],
)
def test_an_int_takes_int_literals(text: str, value: int) -> None:
  result = read(text, 3)
  assert result == value
  assert type(result) is int


@pytest.mark.parametrize(
  "text", ["1.5", "1.0", "1e3", "", "x", "True", "None", "1 000", "007", "1__0", "inf"]
)
def test_an_int_takes_nothing_else(text: str) -> None:
  with pytest.raises(ValueError, match=rf"^a\.b takes an int; got {text!r}$"):
    read(text, 3)


@pytest.mark.parametrize(
  ("text", "value"),
  [("0.5", 0.5), ("3", 3.0), ("-1e-3", -0.001), (".5", 0.5), (" inf ", math.inf)],
)
def test_a_float_takes_numbers(text: str, value: float) -> None:
  result = read(text, 1.0)
  assert result == value
  assert type(result) is float


@pytest.mark.parametrize("text", ["x", "", "None", "True", "1/2", "0.1 0.2", "[1.0]"])
def test_a_float_takes_no_other_text(text: str) -> None:
  with pytest.raises(ValueError, match=r"^a\.b takes a float; got '"):
    read(text, 1.0)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "Infinity", "INF", "NaN"])
def test_infinity_is_meant_only_if_written_inf(text: str) -> None:
  with pytest.raises(ValueError, match=rf"got '{text}'; infinity is written inf"):
    read(text, 1.0)


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("plain words", "plain words"),
    ("'quoted'", "quoted"),
    ('  "quoted"  ', "quoted"),
    (r"'a\n\'b\''", "a\n'b'"),
    ("'two\nlines'", "two\nlines"),
    ("[1, 2]", "[1, 2]"),
    ("it's", "it's"),
    ("3", "3"),
    ("''", ""),
    ("", ""),
    (" ", " "),
    ("'None'", "None"),
  ],
)
def test_a_str_takes_text_as_it_is_or_quoted(text: str, value: str) -> None:
  assert read(text, "old") == value


@pytest.mark.parametrize("text", ["'open", '"', "'a' 'b'", "'a'b", "'a\""])
def test_a_str_that_begins_with_a_quote_is_quoted(text: str) -> None:
  with pytest.raises(
    ValueError, match=r"^a\.b: .* begins with a quote but is no quoted"
  ):
    read(text, "old")


def test_a_str_takes_the_word_none_only_in_quotes() -> None:
  with pytest.raises(
    ValueError, match="takes a str; got None; the word is written 'No"
  ):
    read("None", "old")
  assert read("None", "old", default=None) is None


@pytest.mark.parametrize(
  ("text", "current", "value"),
  [
    ("[3, 4, 5]", [1], [3, 4, 5]),
    ("8,16", [1, 2], [8, 16]),
    ("8,16", (1, 2), (8, 16)),
    ("[8]", (1, 2), (8,)),
    ("(8,)", [1, 2], [8]),
    ("[]", [1], []),
    ("[1, 2.5]", [0.5], [1.0, 2.5]),
    ("[1, 2]", [1, 2.5], [1, 2]),
    ("['a', None]", [1, "b"], ["a", None]),
    ("[1, 'a']", [], [1, "a"]),
    ("[[1], [2, 3]]", [(1, 2)], [(1,), (2, 3)]),
    ("[['a'], [1]]", [[1], ["a"]], [["a"], [1]]),
    ("{'c': 2}", {"a": 1.0}, {"c": 2.0}),
    ("[{'a': 1}]", [{"b": 2.5}], [{"a": 1.0}]),
    ("[-1, -0.5]", [1.0], [-1.0, -0.5]),
  ],
)
def test_lists_keep_their_kind_and_type_of_items(
  text: str, current: Any, value: Any
) -> None:
  result = read(text, current)
  assert result == value
  assert repr(result) == repr(value)  # types of items, too


@pytest.mark.parametrize(
  ("text", "current", "message"),
  [
    ("8", [1], r"^a\.b takes a value of type list; got 8$"),
    ("{}", [1], r"^a\.b takes a value of type list; got {}$"),
    ("[1, 2.5]", [1], r"^a\.b\[1\] takes a value of type int; got 2\.5$"),
    ("[True]", [1], r"^a\.b\[0\] takes a value of type int; got True$"),
    ("[1]", [True], r"^a\.b\[0\] takes a value of type bool; got 1$"),
    ("['x']", [0.5], r"^a\.b\[0\] takes a value of type float; got 'x'$"),
    ("(1, None)", (1, 2), r"^a\.b\[1\] takes a value of type int; got None$"),
    ("[[1], ['a']]", [[1]], r"^a\.b\[1\]\[0\] takes a value of type int; got 'a'$"),
    ("{'k': 'x'}", {"a": 1}, r"^a\.b\['k'\] takes a value of type int; got 'x'$"),
    ("[1]", {"a": 1}, r"^a\.b takes a value of type dict; got \[1\]$"),
    ("type/math/sqrt", [1], r"^a\.b takes a value of type list; got <built-in"),
    ("[a, b]", ["c"], r"^a\.b: a is not a literal; strings have quotes$"),
    ("[a b]", ["c"], r"^a\.b: '\[a b\]' is not a literal; strings in it have quotes$"),
    ("[1, 2", [1], r"^a\.b: '\[1, 2' is not a literal; strings in it have quotes$"),
    ("", [1], r"^a\.b: '' is not a literal$"),
    ("[f(1)]", [1], r"^a\.b: f\(1\) is not a literal"),
    ("[1 + 1]", [1], r"^a\.b: 1 \+ 1 is not a literal"),
    ("[1e999]", [1.0], r"^a\.b: 1e309 is not a literal"),
    (
      f"[{10**400}]",
      [1.0],
      r"^a\.b\[0\] takes a float; got .* infinity is written inf",
    ),
    ("{[1]: 2}", {}, r"^a\.b: unhashable"),
    ("{**{}}", {}, r"^a\.b: \{\*\*\{\}\} is not a literal"),
    ("[b'x']", [], r"is not a literal"),
    ("{1, 2}", [1], r"is not a literal"),
  ],
)
def test_lists_of_another_form_are_refused(
  text: str, current: Any, message: str
) -> None:
  with pytest.raises(ValueError, match=message):
    read(text, current)


def test_an_int_in_the_place_of_a_float_stays_open_to_floats() -> None:
  result = read("0.5", 1, default=0.1)
  assert result == 0.5
  assert read("2", 1, default=0.1) == 2.0


def test_the_current_value_rules_over_the_default() -> None:
  assert read("x", "old", default=0.5) == "x"
  assert read("7", 1, default="old") == 7


def test_the_default_gives_the_type_of_a_value_that_is_none() -> None:
  assert read("7", None, default=1) == 7
  assert read("None", None, default=1) is None
  assert read(" None ", 7, default=None) is None
  with pytest.raises(ValueError, match=r"a\.b takes an int; got 'x'"):
    read("x", None, default=1)


# Values that are None.


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("5", 5),
    ("-0.5", -0.5),
    ("True", True),
    ("None", None),
    ("[1, 'a']", [1, "a"]),
    ("(1, 2)", (1, 2)),
    ("inf", math.inf),
    ("'5'", "5"),
    (" '5' ", "5"),
    (" 5 ", 5),
    ("some words", "some words"),
    ("true", "true"),
    ("/data/my set", "/data/my set"),
    ("a/b/c", "a/b/c"),
    ("1.2.3", "1.2.3"),
    ("007", "007"),
    ("", ""),
  ],
)
def test_without_any_type_a_literal_is_read_and_else_a_string(
  text: str, value: Any
) -> None:
  result = read(text, None)
  assert result == value
  assert type(result) is type(value)


@pytest.mark.parametrize("text", ["[1, 2", "{'a'}", "(a)", "'open", "type/no_module/X"])
def test_what_begins_like_a_literal_must_be_one(text: str) -> None:
  with pytest.raises(ValueError, match=r"^a\.b: "):
    read(text, None)


@pytest.mark.parametrize("text", ["-" * 9000 + "1", "[" + "~" * 200_000 + "1]"])
def test_what_is_too_deep_is_refused(text: str) -> None:
  with pytest.raises(
    ValueError, match=r"^a\.b: a literal of \d+ characters is too deep"
  ):
    read(text, [1])


def test_a_key_of_a_dict_is_given_once() -> None:
  with pytest.raises(ValueError, match=r"^a\.b: the key 'x' is given twice$"):
    read("{'x': 1, 'y': 2, 'x': 3}", {})
  with pytest.raises(ValueError, match=r"^a\.b: the key 'x' is given twice$"):
    read("[{'x': 1, 'x': 1}]", None)


# Classes, functions and enums.


def test_a_class_or_function_takes_another_one() -> None:
  assert read(f"type/{MODULE}/Abstract", Dense) is Abstract
  assert read(f"type/{MODULE}/relu", Dense) is relu
  assert read(f"type/{MODULE}/Dense.Inner", relu) is Dense.Inner
  assert read("type/json/JSONDecodeError", Dense).__name__ == "JSONDecodeError"
  assert read(f"[type/{MODULE}/relu]", [Dense]) == [relu]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("Dense", r"^a\.b: Dense is not a literal"),
    ("3", r"^a\.b takes a value of type class or function; got 3$"),
    ("type/no_module/X", r"^a\.b: 'type/no_module/X' cannot be imported: No module"),
    (
      f"type/{MODULE}/Dnse",
      rf"^a\.b: 'type/{MODULE}/Dnse': {MODULE} has no 'Dnse'; did you mean 'Dense'",
    ),
    (
      f"type/{MODULE}/Dense.Iner",
      r"has no 'Dense\.Iner'; did you mean 'Inner'",
    ),
    (f"type/{MODULE}/Color.RED", "is a Color, not of the kind 'type'"),
    (f"enum/{MODULE}/Dense", "is a type, not of the kind 'enum'"),
  ],
)
def test_a_class_that_is_not_found_says_why(text: str, message: str) -> None:
  with pytest.raises(ValueError, match=message):
    read(text, Dense)


def test_a_module_that_fails_to_load_says_why(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  (tmp_path / "broken_module_of_a_class.py").write_text("1 / 0\n")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match="cannot be imported: division by zero"):
    read("type/broken_module_of_a_class/X", Dense)


def test_an_enum_takes_the_name_of_its_member() -> None:
  assert read("GREEN", Color.RED) is Color.GREEN
  assert read(f"enum/{MODULE}/Color.GREEN", Color.RED) is Color.GREEN
  assert read(f"[enum/{MODULE}/Color.GREEN]", [Color.RED]) == [Color.GREEN]
  with pytest.raises(
    ValueError, match="takes a Color; got 'GREN'; did you mean 'GREEN'"
  ):
    read("GREN", Color.RED)
  with pytest.raises(ValueError, match="takes a value of type Color; got <Size"):
    read(f"enum/{MODULE}/Size.SMALL", Color.RED)
