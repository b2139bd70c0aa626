from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule import made
from tfpipe.schedule import Action, Schedule, dependencies, gpipe, make, order


def needs(schedule: Schedule, action: str) -> set[Action]:
  return set(dependencies(schedule, *made.actions(action)))


def test_a_forward_needs_the_stage_before() -> None:
  schedule = gpipe.schedule(3, 2)
  assert needs(schedule, "F0:1") == set()
  assert needs(schedule, "F2:1") == set(made.actions("F1:1"))


def test_a_recomputation_does_not_wait_for_the_gradient() -> None:
  schedule = gpipe.schedule(3, 2, remat=True)
  assert needs(schedule, "R1:0") == set(made.actions("F1:0"))
  assert needs(schedule, "BW1:0") == set(made.actions("F1:0 R1:0 BW2:0"))


def test_the_last_backward_needs_only_its_own_stage() -> None:
  assert needs(gpipe.schedule(3, 2), "BW2:1") == set(made.actions("F2:1"))


def test_split_gradients_wait_for_input_gradients_only() -> None:
  schedule = made.zero_bubble_two()
  assert needs(schedule, "B0:1") == set(made.actions("F0:1 B1:1"))
  assert needs(schedule, "W0:1") == set(made.actions("B0:1"))
  assert needs(schedule, "U1:0") == set(made.actions("W1:0 W1:1 W1:2"))


def test_an_update_needs_the_gradients_of_all_copies() -> None:
  schedule = made.chimera_two()
  both = set(made.actions("BW0:0 BW0:1/1"))
  assert needs(schedule, "U0:0") == both
  assert needs(schedule, "U0:0/1") == both


def test_sizes_gather_and_share_micro_batches() -> None:
  schedule = made.chimera(4, 8, size=2)
  assert needs(schedule, "F1:2x2") == set(made.actions("F0:2x2"))
  assert needs(schedule, "BW1:3") == set(made.actions("F1:2x2 BW2:3"))


def test_a_stream_needs_the_update_that_made_its_weights() -> None:
  schedule = made.pipedream_two()
  assert needs(schedule, "F0:2v1") == set(made.actions("U0:0"))
  assert needs(schedule, "BW1:2v2") == set(made.actions("F1:2v2 U1:1"))
  assert needs(schedule, "U0:1") == set(made.actions("BW0:1"))


def test_several_micro_batches_go_into_one_update() -> None:
  schedule = made.stream(3, 4, per_update=4)
  assert schedule.num_updates == 4
  assert [schedule.update_of(m) for m in (0, 3, 4, 15)] == [0, 0, 1, 3]
  assert [list(schedule.micro_batches_of(k)) for k in (0, 3)] == [
    [0, 1, 2, 3],
    [12, 13, 14, 15],
  ]
  expected = {("BW", 1, m, 0, 1, 0) for m in (4, 5, 6, 7)}
  assert needs(schedule, "U1:1") == expected


def test_a_missing_producer_is_named() -> None:
  schedule = dataclasses.replace(
    gpipe.schedule(2, 1),
    actions=(made.actions("F0:0"), made.actions("F1:0 BW1:0")),
  )
  with pytest.raises(
    ValueError, match=r"U .*stage 0.* needs W of stage 0, micro-batch"
  ):
    needs(schedule, "U0:0")


SCHEDULES = [
  *made.ALL,
  *(
    make(name, k, m, remat)
    for name in ("gpipe", "1f1b")
    for k in (1, 2, 5)
    for m in (1, 3, 8)
    for remat in (False, True)
  ),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_the_order_fits_all_lists_and_dependencies(schedule: Schedule) -> None:
  ordered = order(schedule)
  place = {action: index for index, action in enumerate(ordered)}
  assert len(place) == len(ordered) == sum(map(len, schedule.actions))
  for actions in schedule.actions:
    places = [place[action] for action in actions]
    assert places == sorted(places)
  for action in ordered:
    assert all(place[n] < place[action] for n in dependencies(schedule, action))
  assert order(schedule) == ordered


def test_the_order_goes_round_the_devices() -> None:
  text = "F0:0 F1:0 F0:1 F1:1 BW1:0 BW0:0 BW1:1 BW0:1 U1:0 U0:0"
  assert order(gpipe.schedule(2, 2)) == list(made.actions(text))


def test_a_cyclic_wait_names_every_blocked_action() -> None:
  schedule = dataclasses.replace(
    gpipe.schedule(2, 2),
    actions=(
      made.actions("F0:0 BW0:0 F0:1 BW0:1 U0:0"),
      made.actions("F1:0 F1:1 BW1:0 BW1:1 U1:0"),
    ),
  )
  with pytest.raises(
    ValueError,
    match=r"device 0 does not get past BW \(.*stage 0, micro-batch 0\), which needs BW "
    r".*stage 1.*; device 1 does not get past F .*needs F .*stage 0, micro-batch 1",
  ):
    order(schedule)


@given(st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_equal_arguments_give_equal_schedules(k: int, m: int, remat: bool) -> None:
  assert make("1f1b", k, m, remat) == make("1f1b", k, m, remat)
  assert hash(make("gpipe", k, m, remat)) == hash(make("gpipe", k, m, remat))
