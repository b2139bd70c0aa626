import copy
import pickle
from typing import Any

import pytest

from tests.test_params import Dense, Stack, make_tree
from tfpipe import params
from tfpipe.params import InstantiableParams, Params

# Copies.


@pytest.mark.parametrize("copy_of", [Params.Copy, copy.deepcopy])
def test_a_copy_shares_nothing_that_can_change(copy_of: Any) -> None:
  p = make_tree()
  new = copy_of(p)
  assert new == p
  new.task.layers[0].dim = 8
  new.task.rates["enc"] = 0.0
  new.task.layers.append(1)
  assert p == make_tree()


def test_a_copy_keeps_class_defaults_and_descriptions() -> None:
  p = Dense.Params()
  p.dim = 8
  new = p.Copy()
  assert type(new) is InstantiableParams
  assert new.cls is Dense
  assert new.dim == 8
  assert new.GetDefault("dim") == 3
  assert new.Copy().GetDefault("dim") == 3
  assert new.Describe() == p.Describe()


def test_a_params_held_twice_is_held_twice_by_the_copy() -> None:
  p, shared = Params(), Params()
  p.Define("a", shared, "")
  p.Define("b", shared, "")
  new = p.Copy()
  assert new.a is new.b
  assert new.a is not shared


def test_a_default_does_not_change_with_a_list_changed_in_place() -> None:
  p = Params()
  p.Define("l", [1, 2], "")
  p.Set(**{"l[0]": 5})
  p.l.append(3)
  assert p.l == [5, 2, 3]
  assert p.GetDefault("l") == [1, 2]
  p.GetDefault("l").append(3)
  assert p.GetDefault("l") == [1, 2]


def test_defaults_are_found_by_path_but_items_have_none() -> None:
  p = make_tree().Set(**{"task.train.lr": 0.5, "task.layers[0].dim": 5})
  assert p.GetDefault("task.train.lr") == 0.1
  assert p.GetDefault("task.layers[0].dim") == 3
  with pytest.raises(AttributeError, match=r"sizes\[0\] is an item of a list or dict"):
    p.GetDefault("task.sizes[0]")


def test_params_are_pickled_whole() -> None:
  p = make_tree().Set(**{"task.train.lr": 0.5})
  p.Freeze()
  new = pickle.loads(pickle.dumps(p))
  assert new == p
  assert new.IsImmutable()
  assert new.GetDefault("task.train.lr") == 0.1


# Freezing.


def test_a_frozen_params_refuses_every_change() -> None:
  p = make_tree()
  assert not p.IsImmutable()
  p.Freeze()
  assert p.IsImmutable()
  for act in (
    lambda: p.Define("x", 1, ""),
    lambda: p.Set(name="x"),
    lambda: p.Set(**{"task.train.lr": 1.0}),
    lambda: setattr(p, "name", "x"),
    lambda: p.Delete("name"),
    lambda: p.Delete("task.train.lr"),
    lambda: p.FromText("name : 'x'"),
    lambda: p.SetFromText("name", "x"),
    lambda: p.MergeCommonKeysFrom(make_tree()),
  ):
    with pytest.raises(TypeError, match="This Params instance is immutable: cannot"):
      act()
  assert p == make_tree()


def test_freezing_is_of_one_level() -> None:
  p = make_tree()
  p.Freeze()
  p.task.train.lr = 0.5
  assert p.task.train.lr == 0.5
  assert not p.task.IsImmutable()


def test_a_frozen_level_below_is_not_changed_by_path() -> None:
  p = make_tree()
  p.task.Freeze()
  for path in ["task.sizes", "task.sizes[0]", "task.rates['enc']"]:
    with pytest.raises(TypeError, match=r"immutable: cannot set .task"):
      p.Set(**{"name": "x", path: 1})
  with pytest.raises(TypeError, match=r"immutable: cannot delete 'task\.sizes'"):
    p.Delete("task.sizes")
  assert p == make_tree()
  p.Set(**{"task.train.lr": 0.5})
  assert p.task.train.lr == 0.5


def test_copies_of_frozen_params_are_frozen() -> None:
  p = make_tree()
  p.Freeze()
  with pytest.raises(TypeError, match="immutable: cannot set 'name'"):
    p.Copy().name = "x"


# Copying fields.


def test_copy_fields_to_copies_values_deeply() -> None:
  source, target = make_tree(), make_tree()
  source.task.layers[0].dim = 9
  source.name = "x"
  assert params.CopyFieldsTo(source, target) is target
  assert target == source
  target.task.layers[0].dim = 10
  assert source.task.layers[0].dim == 9


def test_copy_fields_to_leaves_out_skipped_keys() -> None:
  source, target = make_tree().Set(name="x", task=None), make_tree()
  params.CopyFieldsTo(source, target, skip=["task"])
  assert target == make_tree().Set(name="x")
  with pytest.raises(AttributeError, match="no parameter 'tsk'; did you mean 'task'"):
    params.CopyFieldsTo(source, target, skip=["tsk"])


def test_copy_fields_to_refuses_keys_the_target_lacks() -> None:
  target = Params()
  target.Define("name", "", "")
  with pytest.raises(AttributeError, match="no parameter 'task'"):
    params.CopyFieldsTo(make_tree(), target)
  assert target.name == ""
  params.CopyFieldsTo(make_tree(), target, ignore_unknown_keys=True)
  assert target.name == "run"


def test_copy_fields_to_keeps_the_other_keys_of_the_target() -> None:
  target = make_tree()
  target.Define("more", 1, "")
  params.CopyFieldsTo(make_tree().Set(name="x"), target)
  assert (target.name, target.more) == ("x", 1)


def test_copy_fields_to_never_copies_the_class() -> None:
  source = Dense.Params().Set(name="d").Delete("dim")
  target = Stack.Params()
  params.CopyFieldsTo(source, target)
  assert (target.cls, target.name) == (Stack, "d")
  params.CopyFieldsTo(source, target, skip=["cls"])
  assert target.cls is Stack


def test_copy_fields_subset_to_copies_the_named_keys_only() -> None:
  source = make_tree().Set(**{"name": "x", "task.train.lr": 0.5})
  target = make_tree()
  assert params.CopyFieldsSubsetTo(source, target, ["name"]) is target
  assert target == make_tree().Set(name="x")
  with pytest.raises(AttributeError, match="no parameter 'nmae'; did you mean 'name'"):
    params.CopyFieldsSubsetTo(source, target, ["nmae"])


def test_merge_common_keys_from_takes_what_both_have() -> None:
  target = Stack.Params()
  target.Define("more", 1, "")
  assert target.MergeCommonKeysFrom(Dense.Params().Set(name="d", dim=9)) is target
  assert (target.name, target.more, target.cls) == ("d", 1, Stack)
  assert "dim" not in target


# Instantiate.


def test_instantiate_calls_the_class_with_the_params() -> None:
  layer = Dense.Params().Set(dim=5).Instantiate()
  assert isinstance(layer, Dense)
  assert layer.params.dim == 5
  assert layer.extra == 0


def test_instantiate_hands_on_keyword_arguments() -> None:
  assert Dense.Params().Instantiate(extra=4).extra == 4


def test_a_failing_constructor_names_the_class_and_the_params() -> None:
  p = Dense.Params().Set(dim=-1)
  with pytest.raises(ValueError, match=r"got -1 \(building Dense\)$"):
    p.Instantiate()
  with pytest.raises(ValueError, match=r"got -1 \(building Dense 'fc'\)$"):
    p.Set(name="fc").Instantiate()
  with pytest.raises(TypeError, match=r"'wrong' \(building Dense 'fc'\)$"):
    p.Instantiate(wrong=1)


def test_a_failing_child_names_the_way_to_it() -> None:
  p = Stack.Params()
  p.Set(**{"body[0].dim": -1, "body[0].name": "fc"})
  message = r"got -1 \(building Dense 'fc'\) \(building Stack 'stack'\)$"
  with pytest.raises(ValueError, match=message):
    p.Instantiate()


@pytest.mark.parametrize(
  "error", [OSError(2, "not there"), ValueError(), ValueError(3), KeyError(1, "a")]
)
def test_errors_without_a_message_in_front_stay_as_they_are(error: Exception) -> None:
  def fail(_: InstantiableParams) -> None:
    raise error

  args = error.args
  with pytest.raises(type(error)) as caught:
    InstantiableParams(fail).Instantiate()
  assert caught.value is error
  assert error.args == args


def test_params_without_a_class_cannot_be_instantiated() -> None:
  with pytest.raises(TypeError, match="cls is None, so there is nothing"):
    Dense.Params().Set(cls=None).Instantiate()
