import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe import spelling


def test_the_nearest_name_is_appended_to_a_message() -> None:
  known = ["max_steps", "learning_rate", "batch_size"]
  assert spelling.nearest("max_stepz", known) == "; did you mean 'max_steps'?"


@pytest.mark.parametrize("name", ["Max_Steps", "MAX_STEPS", "steps", "mx_step"])
def test_case_and_missing_pieces_do_not_hide_the_name(name: str) -> None:
  assert spelling.nearest(name, ["max_steps", "dim"]) == "; did you mean 'max_steps'?"


def test_short_names_are_suggested_too() -> None:
  assert spelling.nearest("dmi", ["dim", "rate"]) == "; did you mean 'dim'?"


def test_nothing_is_suggested_when_nothing_is_near() -> None:
  assert spelling.nearest("xyz", ["max_steps"]) == ""
  assert spelling.nearest("xyz", []) == ""


def test_all_names_are_listed_when_nothing_is_near() -> None:
  assert spelling.nearest_or_all("xyz", ["b", "a"]) == "; known: a, b"
  assert spelling.nearest_or_all("xyz", []) == "; known: none"
  assert spelling.nearest_or_all("rat", ["rate", "dim"]) == "; did you mean 'rate'?"


def test_close_matches_come_best_first_in_their_own_spelling() -> None:
  known = ["Dense", "DenseBlock", "Conv"]
  assert spelling.close_matches("dense", known) == ["Dense", "DenseBlock"]
  assert spelling.close_matches("dense", known, limit=1) == ["Dense"]


def test_names_that_differ_in_case_alone_give_one_match() -> None:
  for known in (["a", "A"], ["A", "a"]):
    assert spelling.close_matches("a", known) == ["A"]


@pytest.mark.parametrize(
  ("path", "steps"),
  [
    ("a", ("a",)),
    ("a.b_1.C", ("a", "b_1", "C")),
    ("a[0]", ("a", 0)),
    ("a[-1].b", ("a", -1, "b")),
    ("a[10][2].b", ("a", 10, 2, "b")),
    ("a['k']", ("a", "k")),
    ('a["it\'s"].b', ("a", "it's", "b")),
    (r"a['x.y[0]: \'z\\'].b", ("a", "x.y[0]: 'z\\", "b")),
  ],
)
def test_a_path_splits_into_its_steps(path: str, steps: tuple[str | int, ...]) -> None:
  assert spelling.split_path(path) == steps


@pytest.mark.parametrize(
  "path",
  ["", ".", "a.", ".a", "a..b", "a b", "a[", "a[]", "a[x]", "a[01]", "[0]", "1a"],
)
def test_what_is_no_path_is_refused(path: str) -> None:
  with pytest.raises(ValueError, match=r"is not a path of the form a\.b\[0\]\.c"):
    spelling.split_path(path)


@given(st.text())
def test_any_string_can_be_the_key_of_a_dict_in_a_path(key: str) -> None:
  assert spelling.split_path(f"a[{key!r}].b") == ("a", key, "b")


def test_paths_are_joined_by_dots_except_at_the_root() -> None:
  assert spelling.join_path("", "a") == "a"
  assert spelling.join_path("a[0]", "b") == "a[0].b"
