"""Tables of ticks: every action once, neighbors one tick apart, nothing twice."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe import schedule
from tfpipe.schedule import text
from tfpipe.schedule.action import Action
from tfpipe.schedule.ticks import IDLE, Ticks, table

SIZES = st.integers(1, 7)
NAMES = st.sampled_from(["gpipe", "1f1b", "eager_1f1b"])


def ticks_of(rows) -> dict[tuple[int, int], int]:
  """Tick of each (stage, micro-batch); fails if one is there twice."""
  found = {}
  for tick, row in enumerate(rows):
    for stage, m in enumerate(row):
      if m != IDLE:
        assert (stage, m) not in found
        found[stage, m] = tick
  return found


def order_of(ticks: Ticks, stage: int) -> list[tuple[str, int]]:
  """Forwards and backwards of a stage, in order."""
  order = []
  for forward, backward in zip(ticks.forward, ticks.backward, strict=True):
    order += [("F", forward[stage])] if forward[stage] != IDLE else []
    order += [("BW", backward[stage])] if backward[stage] != IDLE else []
  return order


@given(NAMES, SIZES, SIZES, st.booleans())
def test_a_table_does_what_the_schedule_says(name, stages, number, remat):
  made = schedule.make(name, stages, number, remat)
  ticks = table(made)
  everything = {(s, m) for s in range(stages) for m in range(number)}
  forward, backward = ticks_of(ticks.forward), ticks_of(ticks.backward)
  assert set(forward) == set(backward) == everything
  for stage, m in everything:
    if stage + 1 < stages:
      assert forward[stage + 1, m] == forward[stage, m] + 1
      assert backward[stage, m] == backward[stage + 1, m] + 1
    assert forward[stage, m] <= backward[stage, m]
  for stage, actions in enumerate(made.actions):
    expected = [(a.kind, a.micro_batch) for a in actions if a.kind in ("F", "BW")]
    assert order_of(ticks, stage) == expected
  assert ticks.recomputes == remat


@given(NAMES, SIZES, SIZES)
def test_no_input_is_written_over_before_its_backward(name, stages, number):
  ticks = table(schedule.make(name, stages, number))
  for stage in range(stages):
    slots: dict[int, int] = {}
    for kind, m in order_of(ticks, stage):
      slot = m % ticks.num_slots
      if kind == "F":
        assert slot not in slots
        slots[slot] = m
      else:
        assert slots.pop(slot) == m


@given(SIZES, SIZES)
def test_gpipe_takes_as_many_ticks_as_figure_2_has_columns(stages, number):
  ticks = table(schedule.make("gpipe", stages, number))
  # All forwards, then all backwards, the first in the last stage's last tick.
  assert ticks.num_ticks == 2 * (number + stages - 1) - 1
  assert ticks.num_slots == number


@given(SIZES, SIZES)
def test_a_stage_that_runs_ahead_works_in_every_tick(stages, number):
  ticks = table(schedule.make("eager_1f1b", stages, number))
  assert ticks.num_ticks == number + 2 * (stages - 1)
  assert ticks.num_slots == min(number, 2 * stages - 1)


@given(SIZES, SIZES)
def test_1f1b_keeps_no_more_inputs_than_stages(stages, number):
  ticks = table(schedule.make("1f1b", stages, number))
  assert ticks.num_slots == min(number, stages)


def test_a_small_table_is_as_drawn_by_hand():
  ticks = table(schedule.make("gpipe", 2, 2, remat=True))
  i = IDLE
  assert ticks.forward == ((0, i), (1, 0), (i, 1), (i, i), (i, i))
  assert ticks.backward == ((i, i), (i, i), (i, 0), (0, 1), (1, i))


@pytest.mark.parametrize(
  ("name", "reason"),
  [
    ("interleaved", "stage s must be on device s"),
    ("chimera", "stage s must be on device s"),
    ("zb_h1", "input gradient"),
    ("zb_v", "stage s must be on device s"),
  ],
)
def test_what_does_not_line_up_is_refused_by_name(name, reason):
  with pytest.raises(ValueError, match=f"schedule {name} does not line up.*{reason}"):
    table(schedule.make(name, 2, 4))


def test_orders_that_contradict_each_other_are_refused():
  made = schedule.make("gpipe", 2, 2)
  first, second = made.actions
  swapped = (first[1], first[0], *first[2:])
  crossed = dataclasses.replace(made, name="crossed", actions=(swapped, second))
  with pytest.raises(ValueError, match=r"crossed does not line up.*contradict"):
    table(crossed)


def test_any_order_of_backwards_lines_up_if_all_devices_have_it():
  made = schedule.make("gpipe", 2, 3)
  lists = tuple((*a[:3], *a[3:6][::-1], *a[6:]) for a in made.actions)
  reverse = dataclasses.replace(made, name="reverse", actions=lists)
  ticks = table(text.from_json(text.to_json(reverse)))
  backward = ticks_of(ticks.backward)
  assert backward[1, 2] < backward[1, 1] < backward[1, 0]


def test_a_recomputation_must_be_right_before_its_backward():
  made = schedule.make("gpipe", 1, 2, remat=True)
  (actions,) = made.actions
  assert actions[2] == Action("R", 0, 0)
  early = (actions[0], actions[2], actions[1], *actions[3:])
  with pytest.raises(ValueError, match="right before its backward"):
    table(dataclasses.replace(made, actions=(early,)))


def test_either_all_or_no_backwards_recompute():
  made = schedule.make("gpipe", 1, 2, remat=True)
  (actions,) = made.actions
  mixed = tuple(a for a in actions if a != Action("R", 0, 1))
  with pytest.raises(ValueError, match="all or no"):
    table(dataclasses.replace(made, actions=(mixed,)))
