"""Lists of small sizes, written out, and what several generators have in common."""

from __future__ import annotations

import dataclasses

import pytest

from tests.schedule import made
from tfpipe.schedule import (
  NAMES,
  Action,
  Schedule,
  make,
  validate,
  without_needless_recomputation,
)


def lists(*texts: str) -> tuple[tuple[Action, ...], ...]:
  return tuple(map(made.actions, texts))


def test_eager_1f1b_runs_two_forwards_ahead_for_each_stage_behind() -> None:
  assert make("eager_1f1b", 2, 4).actions == lists(
    "F0:0 F0:1 F0:2 BW0:0 F0:3 BW0:1 BW0:2 BW0:3 U0:0",
    "F1:0 BW1:0 F1:1 BW1:1 F1:2 BW1:2 F1:3 BW1:3 U1:0",
  )


def test_zb_h1_is_late_by_the_devices_before() -> None:
  schedule = make("zb_h1", 2, 3)
  assert schedule == made.zero_bubble_two()
  for k in range(1, 6):
    for m in range(1, 9):
      assert make("zb_h1", k, m) == made.zero_bubble_h1(k, m)


def test_zb_h2_is_late_by_twice_that() -> None:
  assert make("zb_h2", 2, 3).actions == lists(
    "F0:0 F0:1 F0:2 B0:0 W0:0 B0:1 W0:1 B0:2 W0:2 U0:0",
    "F1:0 B1:0 F1:1 B1:1 F1:2 B1:2 W1:0 W1:1 W1:2 U1:0",
  )


def test_interleaving_takes_a_group_through_all_stages_of_a_device() -> None:
  schedule = make("interleaved", 2, 4)
  assert schedule.placement == ((0, 1, 0, 1),)
  assert schedule.actions == lists(
    "F0:0 F0:1 F2:0 F2:1 F0:2 BW2:0 F0:3 BW2:1 F2:2 BW0:0 F2:3 BW0:1 "
    "BW2:2 BW2:3 BW0:2 BW0:3 U0:0 U2:0",
    "F1:0 F1:1 F3:0 BW3:0 F3:1 BW3:1 F1:2 BW1:0 F1:3 BW1:1 F3:2 BW3:2 F3:3 BW3:3 "
    "BW1:2 BW1:3 U1:0 U3:0",
  )
  assert schedule == made.interleaved()


def test_groups_may_have_any_size_from_the_number_of_devices_on() -> None:
  # Groups of 3 and 2; a device's second stage follows its first after each.
  first = make("interleaved", 2, 5).actions[1]
  assert [a.stage for a in first if a.kind == "F"] == [1, 1, 1, 3, 3, 3, 1, 1, 3, 3]
  whole = make("interleaved", 2, 5, group_size=5).actions[1]
  assert [a.stage for a in whole if a.kind == "F"] == [1] * 5 + [3] * 5


def test_fewer_micro_batches_than_devices_are_one_group() -> None:
  schedule = make("interleaved", 3, 2)
  assert schedule == make("interleaved", 3, 2, group_size=2)
  assert schedule.actions[2] == made.actions(
    "F2:0 F2:1 F5:0 BW5:0 F5:1 BW5:1 BW2:0 BW2:1 U2:0 U5:0"
  )


def test_looped_bfs_runs_backward_in_the_reverse_order() -> None:
  assert make("looped_bfs", 2, 2).actions == lists(
    "F0:0 F0:1 F2:0 F2:1 BW2:1 BW2:0 BW0:1 BW0:0 U0:0 U2:0",
    "F1:0 F1:1 F3:0 F3:1 BW3:1 BW3:0 BW1:1 BW1:0 U1:0 U3:0",
  )


def test_interleaved_zero_bubble_runs_half_as_far_ahead() -> None:
  assert make("zb_interleaved", 2, 2).actions == lists(
    "F0:0 F0:1 F2:0 F2:1 B2:0 W2:0 B2:1 W2:1 B0:0 W0:0 B0:1 W0:1 U0:0 U2:0",
    "F1:0 F1:1 F3:0 B3:0 F3:1 B3:1 W3:0 B1:0 W3:1 B1:1 W1:0 W1:1 U1:0 U3:0",
  )


def test_zb_v_goes_down_the_devices_and_back() -> None:
  schedule = make("zb_v", 2, 3)
  assert schedule.placement == ((0, 1, 1, 0),)
  assert schedule.actions == lists(
    "F0:0 F0:1 F0:2 F3:0 B3:0 W3:0 F3:1 B3:1 W3:1 B0:0 W0:0 F3:2 B3:2 W3:2 "
    "B0:1 W0:1 B0:2 W0:2 U0:0 U3:0",
    "F1:0 F2:0 F1:1 F2:1 B2:0 W2:0 F1:2 B1:0 W1:0 F2:2 B2:1 W2:1 B1:1 B2:2 "
    "B1:2 W1:1 W2:2 W1:2 U1:0 U2:0",
  )


def test_dualpipe_v_pairs_a_forward_with_a_backward_of_the_other_half() -> None:
  assert make("dualpipe_v", 1, 2).actions == lists(
    "F0:0 F1:0 F0:1 BW1:0 F1:1 BW0:0 BW1:1 B0:1 W0:1 U0:0 U1:0"
  )
  assert make("dualpipe_v", 2, 4).actions == lists(
    "F0:0 F0:1 F0:2 F3:0 B3:0 W3:0 F3:1 F0:3 BW3:1 F3:2 BW0:0 BW3:2 F3:3 BW0:1 "
    "BW3:3 B0:2 W0:2 B0:3 W0:3 U0:0 U3:0",
    "F1:0 F2:0 F1:1 F2:1 F1:2 BW2:0 F2:2 BW1:0 F1:3 BW2:1 F2:3 BW1:1 "
    "BW2:2 BW1:2 B2:3 B1:3 W2:3 W1:3 U1:0 U2:0",
  )


def test_chimera_sends_half_of_a_unit_each_way() -> None:
  for d in (2, 4, 6):
    for units in (1, 2, 3):
      assert make("chimera", d, units * d) == made.chimera(d, units * d)
      doubled = made.chimera(d, units * 2 * d, size=2)
      for name in ("chimera_doubling", "chimera_halving"):
        schedule = make(name, d, units * 2 * d)
        assert dataclasses.replace(schedule, name="chimera") == doubled


def test_a_part_of_a_unit_is_shared_as_evenly_as_it_can_be() -> None:
  schedule = make("chimera", 4, 6)
  pipes = {a.micro_batch: a.pipe for a in schedule.actions[0] if a.kind == "F"}
  assert [pipes[m] for m in range(6)] == [0, 0, 1, 1, 0, 1]
  # Of seven micro-batches two by two the last is alone.
  sizes = {
    a.micro_batch: a.size
    for a in make("chimera_doubling", 4, 7).actions[0]
    if a.kind == "F"
  }
  assert sizes == {0: 2, 2: 2, 4: 2, 6: 1}


def test_more_pairs_of_pipes_start_on_other_devices() -> None:
  assert make("chimera", 4, 4, num_pairs=2).placement == (
    (0, 1, 2, 3),
    (3, 2, 1, 0),
    (2, 3, 0, 1),
    (1, 0, 3, 2),
  )
  for d, f in ((4, 2), (6, 3), (8, 2), (8, 4)):
    placement = make("chimera", d, d, num_pairs=f).placement
    for stage in range(d):
      # Each copy of a stage is on a device of its own.
      assert len({devices[stage] for devices in placement}) == 2 * f


@pytest.mark.parametrize("name", NAMES)
def test_recomputation_is_right_before_its_backward(name: str) -> None:
  for k, m in ((2, 1), (2, 4), (4, 6)):
    if name == "chimera_halving" and m % 2:
      continue
    with_remat, without = make(name, k, m, remat=True), make(name, k, m)
    for actions, plain in zip(with_remat.actions, without.actions, strict=True):
      assert tuple(a for a in actions if a.kind != "R") == plain
      for index, action in enumerate(actions):
        if action.kind in ("B", "BW"):
          assert actions[index - 1] == ("R", *action[1:])
      kinds = [action.kind for action in actions]
      assert kinds.count("R") == kinds.count("B") + kinds.count("BW")


OTHER_ORDERS = ("looped_bfs", "chimera_doubling", "chimera_halving")
ORDERED = [name for name in NAMES if name not in OTHER_ORDERS]


def test_what_a_forward_right_before_has_is_not_computed_again() -> None:
  recomputing = make("zb_h1", 2, 3, remat=True)
  schedule = without_needless_recomputation(recomputing)
  validate(schedule)
  assert schedule.name == "zb_h1+R"
  assert schedule.actions == lists(
    "F0:0 F0:1 R0:0 B0:0 W0:0 F0:2 R0:1 B0:1 W0:1 R0:2 B0:2 W0:2 U0:0",
    "F1:0 B1:0 F1:1 B1:1 W1:0 F1:2 B1:2 W1:1 W1:2 U1:0",
  )


def test_gpipe_computes_all_again_unless_it_has_one_micro_batch() -> None:
  schedule = make("gpipe", 3, 2, remat=True)
  assert without_needless_recomputation(schedule) == schedule
  one = without_needless_recomputation(make("gpipe", 2, 1, remat=True))
  assert one.actions == lists("F0:0 BW0:0 U0:0", "F1:0 BW1:0 U1:0")


@pytest.mark.parametrize("name", ORDERED)
def test_weight_gradients_of_a_copy_are_in_increasing_order(name: str) -> None:
  for k in (2, 4):
    for m in (2, 4, 6, 10, 12):
      for schedule in (make(name, k, m), make(name, k, m, remat=True)):
        for order in weight_orders(schedule).values():
          assert order == sorted(order)


def weight_orders(schedule: Schedule) -> dict[tuple[int, int], list[int]]:
  """Gives the micro-batches of each copy of a stage, as their gradients are added."""
  orders: dict[tuple[int, int], list[int]] = {}
  for actions in schedule.actions:
    for action in actions:
      if "W" in action.kind:
        copy = action.pipe, action.stage
        orders.setdefault(copy, []).append(action.micro_batch)
  return orders


def test_others_keep_an_order_of_their_own() -> None:
  assert weight_orders(make("looped_bfs", 2, 3))[0, 0] == [2, 1, 0]
  assert weight_orders(make("chimera_doubling", 4, 8))[0, 0] == [0, 2, 1, 3]
