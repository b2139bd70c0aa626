from typing import Any

import pytest

from tfpipe.params import InstantiableParams, Params


class Dense:
  """Stands for a layer."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = InstantiableParams(cls)
    p.Define("name", "", "Name.")
    p.Define("dim", 3, "Number of features.")
    return p

  def __init__(self, p: InstantiableParams, extra: int = 0) -> None:
    if p.dim < 0:
      raise ValueError(f"dim must not be negative, got {p.dim}")
    self.params = p.Copy()
    self.extra = extra


class Stack:
  """Stands for a layer of layers."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = InstantiableParams(cls)
    p.Define("name", "stack", "Name.")
    p.Define("body", [Dense.Params()], "The layers.")
    return p

  def __init__(self, p: InstantiableParams) -> None:
    self.body = [child.Instantiate() for child in p.body]


def make_tree() -> Params:
  train = Params()
  train.Define("max_steps", 60, "Number of updates.")
  train.Define("lr", 0.1, "Learning rate.")
  task = Params()
  task.Define("train", train, "How to train.")
  task.Define("layers", [Dense.Params(), Dense.Params()], "The layers.")
  task.Define("rates", {"enc": 0.5, "dec": 0.25}, "Dropout rates.")
  task.Define("sizes", (1, 2), "Sizes.")
  task.Define("dev", None, "Nothing yet.")
  root = Params()
  root.Define("task", task, "The task.")
  root.Define("name", "run", "Name.")
  return root


# Define.


def test_a_defined_parameter_is_an_attribute() -> None:
  p = Params()
  p.Define("dim", 3, "Number of features.")
  assert p.dim == 3
  p.dim = 4
  assert p.dim == 4


@pytest.mark.parametrize("name", ["a", "_a", "a1", "a_b", "class", "self", "values"])
def test_names_of_lower_case_letters_digits_and_underscores_are_legal(
  name: str,
) -> None:
  p = Params()
  p.Define(name, 1, "")
  assert p.Get(name) == 1


@pytest.mark.parametrize(
  "name", ["", "A", "aB", "1a", "a.b", "a b", "a-b", "a[0]", "é"]
)
def test_other_names_are_refused(name: str) -> None:
  with pytest.raises(ValueError, match=r"matches \[a-z_\]\[a-z0-9_\]\*; got"):
    Params().Define(name, 1, "")


@pytest.mark.parametrize("name", ["__class__", "_fields", "_immutable", "__dict__"])
def test_names_that_python_needs_are_refused(name: str) -> None:
  with pytest.raises(ValueError, match=f"'{name}' is a reserved name"):
    Params().Define(name, 1, "")


@pytest.mark.parametrize(("name", "description"), [(None, ""), (1, ""), ("a", None)])
def test_name_and_description_are_strings(name: Any, description: Any) -> None:
  with pytest.raises(TypeError, match="name and description are str"):
    Params().Define(name, 1, description)


def test_a_parameter_is_defined_once() -> None:
  p = Params()
  p.Define("dim", 3, "")
  with pytest.raises(AttributeError, match="parameter 'dim' is already defined"):
    p.Define("dim", 4, "")
  assert p.dim == 3


# Reading and writing.


def test_unknown_attributes_are_refused_with_the_nearest_name() -> None:
  p = Dense.Params()
  expected = "Params of Dense has no parameter 'dmi'; did you mean 'dim'?"
  with pytest.raises(AttributeError, match=expected):
    p.dmi  # noqa: B018
  with pytest.raises(AttributeError, match=expected):
    p.dmi = 3
  with pytest.raises(
    AttributeError, match=r"^Params has no parameter 'x'; known: none"
  ):
    Params().x  # noqa: B018
  assert not hasattr(p, "dmi")


def test_methods_cannot_be_overwritten() -> None:
  with pytest.raises(AttributeError, match="has no parameter 'Set'"):
    Params().Set = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_set_and_get_follow_paths() -> None:
  p = make_tree()
  same = p.Set(**{"task.train.max_steps": 5, "name": "x"}).Set(name="y")
  assert same is p
  assert (p.task.train.max_steps, p.name) == (5, "y")
  assert p.Get("task.train.max_steps") == 5
  assert p.Get("task.train") is p.task.train


def test_items_of_lists_tuples_and_dicts_are_set_by_path() -> None:
  p = make_tree()
  p.Set(**{"task.layers[1].dim": 7, "task.layers[-2].dim": 6, "task.sizes[0]": 9})
  p.Set(**{"task.rates['enc']": 0.75})
  assert [layer.dim for layer in p.task.layers] == [6, 7]
  assert p.task.sizes == (9, 2)
  assert p.task.rates == {"enc": 0.75, "dec": 0.25}
  new = Dense.Params()
  p.Set(**{"task.layers[0]": new})
  assert p.task.layers[0] is new
  assert p.Get("task.layers[0]") is new


def test_an_item_of_a_tuple_in_a_list_is_set_by_path() -> None:
  p = Params()
  p.Define("pairs", [(1, 2), (3, (4, 5))], "")
  p.Set(**{"pairs[1][1][0]": 0})
  assert p.pairs == [(1, 2), (3, (0, 5))]


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("nam", r"^Params has no parameter 'nam'; did you mean 'name'\?"),
    ("zzz", "^Params has no parameter 'zzz'; known: name, task"),
    ("lr", r"^Params has no parameter 'lr'; did you mean 'task\.train\.lr'\?$"),
    (
      "train.lr",
      r"^Params has no parameter 'train'; did you mean 'task\.train\.lr'\?$",
    ),
    (
      "task.train.max_stepz",
      r"^task\.train\.max_stepz: task\.train has no parameter 'max_stepz'; "
      r"did you mean 'max_steps'\?",
    ),
    (
      "task.trian.max_steps",
      r"^task\.trian\.max_steps: task has no parameter 'trian'; did you mean 'train'\?",
    ),
    (
      "task.layers[0].dmi",
      r"^task\.layers\[0\]\.dmi: task\.layers\[0\] has no parameter 'dmi'; "
      r"did you mean 'dim'\?",
    ),
    (
      "task.layers[2].dim",
      r"^task\.layers\[2\]\.dim: task\.layers is a list of 2 items, without 2",
    ),
    ("task.layers[-3]", r"task\.layers is a list of 2 items, without -3"),
    ("task.layers.dim", r"task\.layers is a list of 2 items, without 'dim'"),
    ("task.rates['end']", r"task\.rates has no key 'end'; did you mean 'enc'\?"),
    ("task[0]", r"^task\[0\]: task has no parameter 0; known: dev, layers"),
    ("task.dev.batch", r"task\.dev is None, no Params, and has no 'batch'"),
    ("task.train.lr.x", r"task\.train\.lr is 0\.1, no Params, and has no 'x'"),
  ],
)
def test_a_wrong_path_says_at_which_level_and_what_is_near(
  path: str, message: str
) -> None:
  p = make_tree()
  before = p.Copy()
  for act in (
    lambda: p.Get(path),
    lambda: p.Set(**{path: 1}),
    lambda: p.ParamIsSet(path),
    lambda: p.Delete(path),
    lambda: p.GetDefault(path),
    lambda: p.SetFromText(path, "1"),
    lambda: p.FromText(f"{path} : 1"),
  ):
    with pytest.raises(AttributeError, match=message):
      act()
  assert p == before


def test_what_is_no_path_is_refused() -> None:
  with pytest.raises(ValueError, match=r"'task\.\.train' is not a path"):
    make_tree().Get("task..train")


def test_set_sets_nothing_if_one_path_is_wrong() -> None:
  p = make_tree()
  with pytest.raises(AttributeError):
    p.Set(**{"name": "x", "task.train.lrr": 1.0})
  assert p.name == "run"


def test_delete_removes_parameters_by_path() -> None:
  p = make_tree()
  assert p.Delete("name", "task.train.lr", "task.layers[0].dim") is p
  assert p.GetKeys() == ["task"]
  assert p.task.train.GetKeys() == ["max_steps"]
  assert "dim" not in p.task.layers[0]
  with pytest.raises(AttributeError, match=r"layers\[0\] is an item of a list or dict"):
    p.Delete("task.layers[0]")


def test_delete_removes_nothing_if_one_path_is_wrong() -> None:
  p = make_tree()
  with pytest.raises(AttributeError, match="no parameter 'nam'; did you mean 'name'"):
    p.Delete("task.train.lr", "nam")
  p.task.Freeze()
  with pytest.raises(TypeError, match=r"cannot delete 'task\.train'"):
    p.Delete("name", "task.train")
  assert p == make_tree()


def test_contains_and_len_and_dir_see_the_top_level_only() -> None:
  p = make_tree()
  assert "task" in p
  assert "task.train" not in p
  assert "train" not in p
  assert len(p) == 2
  assert dir(p) == ["name", "task"]


def test_a_parameter_is_set_if_it_is_not_none() -> None:
  p = make_tree()
  assert p.ParamIsSet("task.train.lr")
  assert not p.ParamIsSet("task.dev")
  assert p.Set(**{"task.dev": 0}).ParamIsSet("task.dev")


def test_keys_and_values_come_in_the_order_of_definition() -> None:
  p = Params()
  p.Define("b", 1, "B.")
  p.Define("a", 2, "A.")
  assert p.GetKeys() == ["b", "a"]
  assert list(p.IterParams()) == [("b", 1), ("a", 2)]
  assert [tuple(field) for field in p.IterFields()] == [
    ("b", 1, 1, "B."),
    ("a", 2, 2, "A."),
  ]


# Equality.


def test_params_are_equal_if_names_and_values_are() -> None:
  a, b = Params(), Params()
  assert a == b
  a.Define("x", 1, "one description")
  assert a != b
  b.Define("x", 2, "another description")
  assert a != b
  b.x = 1
  assert a == b
  a.Define("y", 2, "")
  b.Define("y", 2, "")
  assert a == b


def test_the_order_of_definition_does_not_matter_for_equality() -> None:
  a, b = Params(), Params()
  for name in "xy":
    a.Define(name, 1, "")
  for name in "yx":
    b.Define(name, 1, "")
  assert a == b


def test_nested_values_count_for_equality() -> None:
  a, b = make_tree(), make_tree()
  assert a == b
  b.task.layers[1].dim = 4
  assert a != b


@pytest.mark.parametrize("other", [None, 1, "x", {}, [], object()])
def test_params_equal_nothing_else(other: object) -> None:
  assert Params() != other


def test_params_cannot_be_keys() -> None:
  with pytest.raises(TypeError, match="unhashable"):
    hash(Params())


# Visit and print.


def _visited(p: Params, skip: str | None = None) -> list[str]:
  log: list[str] = []

  def enter(path: str, _: Any) -> bool:
    log.append(f"> {path}")
    return path != skip

  p.Visit(
    lambda path, value: log.append(f"{path} = {value!r}"),
    enter,
    lambda path, _: log.append(f"< {path}"),
  )
  return log


def _small() -> Params:
  p = Params()
  p.Define("b", [1, (2, None)], "")
  p.Define("a", {"k": "v", 3: 4}, "")
  p.Define("sub", Params(), "")
  p.sub.Define("x", 5, "")
  return p


def test_visit_walks_in_order_with_all_forms_of_paths() -> None:
  assert _visited(_small()) == [
    "> ",
    "> b",
    "b[0] = 1",
    "> b[1]",
    "b[1][0] = 2",
    "b[1][1] = None",
    "< b[1]",
    "< b",
    "> a",
    "a['k'] = 'v'",
    "a[3] = 4",
    "< a",
    "> sub",
    "sub.x = 5",
    "< sub",
    "< ",
  ]


def test_visit_skips_what_enter_refuses() -> None:
  log = _visited(_small(), skip="b")
  assert log[:4] == ["> ", "> b", "> a", "a['k'] = 'v'"]
  assert _visited(_small(), skip="") == ["> "]


def test_visit_needs_no_enter_and_exit() -> None:
  paths: list[str] = []
  _small().Visit(lambda path, _: paths.append(path))
  assert paths == ["b[0]", "b[1][0]", "b[1][1]", "a['k']", "a[3]", "sub.x"]


def test_printing_is_nested_and_sorted() -> None:
  expected = "{\n  a: {'k': 'v', 3: 4}\n  b: [1, (2, None)]\n  sub: {\n    x: 5\n  }\n}"
  assert str(_small()) == expected
  assert str(Params()) == "{}"
