from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule import made
from tfpipe.schedule import (
  Action,
  Schedule,
  dependencies,
  gpipe,
  one_f_one_b,
  validate,
)


def with_lists(*lists: str, schedule: Schedule | None = None) -> Schedule:
  """Returns GPipe with two stages and micro-batches, or another, with other lists."""
  return dataclasses.replace(
    schedule or gpipe.schedule(2, 2), actions=tuple(map(made.actions, lists))
  )


FIRST = "F0:0 F0:1 BW0:0 BW0:1 U0:0"
LAST = "F1:0 F1:1 BW1:0 BW1:1 U1:0"


@pytest.mark.parametrize("schedule", made.ALL, ids=lambda s: s.name)
def test_every_feature_is_only_data(schedule: Schedule) -> None:
  validate(schedule)


@pytest.mark.parametrize("schedule", made.ALL, ids=lambda s: s.name)
def test_no_action_can_be_left_out_or_done_twice(schedule: Schedule) -> None:
  for device, actions in enumerate(schedule.actions):
    for index, action in enumerate(actions):
      for changed in (
        actions[:index] + actions[index + 1 :],
        (*actions[: index + 1], action, *actions[index + 1 :]),
      ):
        lists = list(schedule.actions)
        lists[device] = changed
        # With two stages, an odd number of updates may be held against either.
        match = "updates" if action.kind == "U" else f"stage {action.stage}"
        with pytest.raises(ValueError, match=match):
          validate(dataclasses.replace(schedule, actions=tuple(lists)))


@pytest.mark.parametrize("schedule", made.ALL, ids=lambda s: s.name)
def test_no_action_can_stand_before_what_it_needs(schedule: Schedule) -> None:
  for device, actions in enumerate(schedule.actions):
    for index in range(len(actions) - 1):
      earlier, later = actions[index : index + 2]
      if earlier in dependencies(schedule, later) and later.kind != "U":
        lists = list(schedule.actions)
        lists[device] = (*actions[:index], later, earlier, *actions[index + 2 :])
        with pytest.raises(ValueError, match=f"device {device}.*does not stand before"):
          validate(dataclasses.replace(schedule, actions=tuple(lists)))


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_any_order_that_respects_dependencies_is_valid(
  data: st.DataObject, num_stages: int, num_micro_batches: int, remat: bool
) -> None:
  schedule = gpipe.schedule(num_stages, num_micro_batches, remat)
  left = [action for actions in schedule.actions for action in actions]
  lists: list[list[Action]] = [[] for _ in range(num_stages)]
  done: set[Action] = set()
  while left:
    ready = [a for a in left if done.issuperset(dependencies(schedule, a))]
    action = data.draw(st.sampled_from(ready))
    left.remove(action)
    done.add(action)
    lists[action.stage].append(action)
  validate(dataclasses.replace(schedule, actions=tuple(map(tuple, lists))))


def test_devices_that_wait_for_each_other_are_refused() -> None:
  schedule = with_lists("F0:0 BW0:0 F0:1 BW0:1 U0:0", LAST)
  with pytest.raises(ValueError, match="gpipe: cyclic wait: device 0"):
    validate(schedule)


@pytest.mark.parametrize(
  ("first", "match"),
  [
    ("F0:0 BW0:0 BW0:1 U0:0", "there is no action F of stage 0, micro-batch 1"),
    ("F0:0 F0:1 BW0:0 B0:1 U0:0", "no action W or BW of stage 0, micro-batch 1"),
    ("F0:0 F0:1 BW0:0 B0:1 BW0:1 U0:0", r"B \(.*micro-batch 1\) and again BW \("),
    ("F0:0 F0:1 R0:0 R0:0 BW0:0 BW0:1 U0:0", r"R \(.*stage 0, .*\) and again R \("),
    ("F0:0x2 F0:1 BW0:0 BW0:1 U0:0", r"F \(.*es 0 to 1\) and again F \(.*batch 1\)"),
    ("F0:0 F0:1 BW0:0 BW0:1", r"stage 0, pipe 0 has updates U \[\], expected \[0\]"),
    (f"{FIRST} U0:0", r"stage 0, pipe 0 has updates U \[0, 0\], expected \[0, 1\]"),
    ("F0:0 F0:1 BW0:0 U0:0 BW0:1", "device 0: U .*does not stand before it"),
    ("F0:0 F1:1 BW0:0 BW0:1 U0:0", "F .*stage 1.* is in the list of device 0, but its"),
    ("F0:0 F2:1 BW0:0 BW0:1 U0:0", "device 0: .*: stage is 2, expected 0 to 1"),
    ("F0:0 F0:2 BW0:0 BW0:1 U0:0", "device 0: .*: micro_batch is 2, expected 0 to 1"),
    ("F0:0 F0:1x2 BW0:0 BW0:1 U0:0", "device 0: .*: size is 2, expected 1 to 1"),
    ("F0:0 F0:1/1 BW0:0 BW0:1 U0:0", "device 0: .*: pipe is 1, expected 0 to 0"),
    ("F0:0 F0:1v2 BW0:0 BW0:1 U0:0", "needs U .*number 1.* which no device does"),
    ("F0:0 F0:1v3 BW0:0 BW0:1 U0:0", "device 0: .*: version is 3, expected 0 to 2"),
    ("F0:0 F0:1 BW0:0 BW0:1 U0:0v1", "device 0: .*: version is 1, expected 0 to 0"),
    ("F0:0 F0:1v1 BW0:0 BW0:1 U0:0", "needs U .*number 0.* does not stand before it"),
  ],
)
def test_an_unsound_list_is_refused(first: str, match: str) -> None:
  with pytest.raises(ValueError, match=match):
    validate(with_lists(first, LAST))


def test_an_unknown_kind_is_refused_with_the_known() -> None:
  schedule = with_lists("F0:0 F0:1 BX0:0 BW0:1 U0:0", LAST)
  with pytest.raises(ValueError, match="device 0: kind 'BX' is not one of F, R, B, W"):
    validate(schedule)


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"num_stages": 0}, "num_stages is 0"),
    ({"placement": ()}, "placement has no pipe"),
    ({"placement": ((0,),)}, r"placement\[0\] has 1 devices for 2 stages"),
    ({"placement": ((0, 2),)}, r"placement\[0\]\[1\] is 2, .*devices 0 to 1"),
    ({"placement": ((0, 0),)}, "device 1 holds no stage"),
    ({"num_versions": 0}, "num_versions is 0"),
  ],
)
def test_an_unsound_record_is_refused(changes: dict[str, object], match: str) -> None:
  with pytest.raises(ValueError, match=match):
    validate(dataclasses.replace(gpipe.schedule(2, 2), **changes))  # type: ignore


def test_a_micro_batch_stays_in_its_pipe() -> None:
  schedule = with_lists(
    "F0:0 F1:1/1 BW1:0/1 BW0:0 U0:0 U1:0/1",
    "F0:1/1 F1:0 BW1:1 BW0:1/1 U1:0 U0:0/1",
    schedule=made.chimera_two(),
  )
  with pytest.raises(ValueError, match="pipe 1, but micro-batch 0 has been in pipe 0"):
    validate(schedule)


def test_micro_batches_divide_evenly_between_updates() -> None:
  schedule = with_lists(
    "F0:0 F0:1 F0:2 BW0:0 BW0:1 U0:0 BW0:2 U0:1",
    "F1:0 F1:1 F1:2 BW1:0 BW1:1 U1:0 BW1:2 U1:1",
    schedule=gpipe.schedule(2, 3),
  )
  with pytest.raises(
    ValueError, match="3 micro-batches do not divide evenly between 2"
  ):
    validate(schedule)


def test_a_weight_version_that_is_overwritten_is_refused() -> None:
  schedule = dataclasses.replace(made.stream(4, 9), num_versions=3)
  with pytest.raises(
    ValueError, match=r"stage 0.* version 0, but with 3 kept there are 1"
  ):
    validate(schedule)


def test_without_a_stash_backwards_take_the_newest_weights() -> None:
  # PipeMare: the order of PipeDream and one copy of the weights.
  stashing = made.stream(4, 9)
  lists = [
    tuple(
      action._replace(version=action.micro_batch) if action.kind == "BW" else action
      for action in actions
    )
    for actions in stashing.actions
  ]
  validate(dataclasses.replace(stashing, actions=tuple(lists), num_versions=1))


def test_a_stale_schedule_cannot_be_called_exact() -> None:
  schedule = dataclasses.replace(made.pipedream_two(), exact=True)
  with pytest.raises(
    ValueError, match=r"said to be exact, but F .* uses weight version"
  ):
    validate(schedule)


def test_steps_with_a_flush_in_between_are_exact() -> None:
  schedule = Schedule(
    name="two steps",
    num_stages=1,
    num_micro_batches=2,
    placement=((0,),),
    actions=(made.actions("F0:0 BW0:0 U0:0 F0:1v1 BW0:1v1 U0:1"),),
  )
  validate(schedule)


def test_a_limit_on_activations_names_the_action_that_exceeds_it() -> None:
  schedule = one_f_one_b.schedule(3, 5)
  validate(schedule, max_kept=3)
  with pytest.raises(
    ValueError, match=r"device 0: F \(.*micro-batch 2\) makes it keep 3 .*at most 2"
  ):
    validate(schedule, max_kept=2)
  recomputing = one_f_one_b.schedule(3, 5, remat=True)
  validate(recomputing, max_kept=1)
  with pytest.raises(ValueError, match=r"device 0: R \(.*batch 0\) makes it keep 1 "):
    validate(recomputing, max_kept=Fraction(1, 2))


def test_more_micro_batches_than_actions_are_refused_before_arrays_are_made() -> None:
  made = dataclasses.replace(gpipe.schedule(2, 2), num_micro_batches=10**12)
  # Two stages, two micro-batches: F and BW of each, and two updates.
  with pytest.raises(ValueError, match=rf"is {10**12}, but all actions .* for 10$"):
    validate(made)
