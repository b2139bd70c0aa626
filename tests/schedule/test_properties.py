"""What holds for every schedule of any size."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule import made
from tfpipe.schedule import (
  NAMES,
  OPTIONS,
  Schedule,
  dependencies,
  draw,
  in_flight,
  make,
  order,
  text,
  validate,
)
from tfpipe.simulate import StageTimes, period, simulate


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, int, int, bool, dict[str, int]]:
  """Draws arguments of `make`, allowed ones and others."""
  name = draw(st.sampled_from(NAMES))
  options = {
    "stages_per_device": draw(st.integers(0, 3)),
    "group_size": draw(st.integers(0, 12)),
    "num_pairs": draw(st.integers(0, 3)),
  }
  has = {option: value for option, value in options.items() if option in OPTIONS[name]}
  return (
    name,
    draw(st.integers(1, 6)),
    draw(st.integers(1, 12)),
    draw(st.booleans()),
    has,
  )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
  """Draws a schedule that is allowed."""
  name, k, m, remat, options = draw(requests())
  if "chimera" in name:
    k, m = k + k % 2, m + m % 2
    pairs = [f for f in range(1, k) if k // 2 % f == 0]
    options["num_pairs"] = draw(st.sampled_from([0, *pairs]))
  if "stages_per_device" in options and name in ("zb_v", "dualpipe_v"):
    options["stages_per_device"] = 2
  options.pop("group_size", None)
  return make(name, k, m, remat, **options)


@given(requests())
@settings(max_examples=300)
def test_every_request_is_sound_or_refused_by_name(
  request: tuple[str, int, int, bool, dict[str, int]],
) -> None:
  name, k, m, remat, options = request
  refusal = None
  try:
    schedule = make(name, k, m, remat, **options)
  except ValueError as error:
    refusal = str(error)
  if refusal is not None:
    values = {"num_devices": k, "num_micro_batches": m, **options}
    assert refusal.startswith(f"{name}: ")
    assert any(f"{field} is {value}: exp" in refusal for field, value in values.items())
    return
  validate(schedule)
  assert (schedule.num_devices, schedule.num_micro_batches) == (k, m)
  each = schedule.num_stages // k
  assert options.get("stages_per_device", 0) in (0, each)
  assert schedule.exact
  assert schedule.num_updates == 1


@given(schedules(), st.data())
def test_no_schedule_waits_for_ever_or_works_faster_than_it_can(
  schedule: Schedule, data: st.DataObject
) -> None:
  count = schedule.num_stages
  secs = st.lists(st.integers(1, 5), min_size=count, max_size=count)
  times = StageTimes(*(data.draw(secs) for _ in range(4)))
  transfer, link = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
  timeline = simulate(schedule, times, transfer, link)
  assert len(timeline.spans) == sum(map(len, schedule.actions))
  work = [sum(map(times.secs, actions)) for actions in schedule.actions]
  assert timeline.busy == tuple(work)
  # No device beats its own work, no micro-batch its way through all stages and back.
  chain = sum(times.forward) + sum(times.input_gradient)
  assert timeline.makespan >= max(*work, chain)
  assert max(work) <= timeline.longest_span <= timeline.makespan
  assert max(work) <= period(schedule, times, transfer, link) <= timeline.makespan
  assert simulate(schedule, times).makespan <= timeline.makespan


@given(schedules())
def test_memory_is_between_one_micro_batch_and_all(schedule: Schedule) -> None:
  without_backward, kept = in_flight(schedule)
  one = Fraction(schedule.num_devices, schedule.num_stages)
  for counts in (without_backward, kept):
    assert all(0 < count <= schedule.num_micro_batches for count in counts)
  assert min(without_backward) >= min(one, schedule.num_micro_batches) / 2
  validate(schedule, max_kept=max(kept))
  with pytest.raises(ValueError, match=f"makes it keep .* at most {max(kept) - one}"):
    validate(schedule, max_kept=max(kept) - one)


@given(schedules())
def test_the_order_fits_all_lists_and_dependencies(schedule: Schedule) -> None:
  place = {action: index for index, action in enumerate(order(schedule))}
  assert len(place) == sum(map(len, schedule.actions))
  for actions in schedule.actions:
    places = [place[action] for action in actions]
    assert places == sorted(places)
    for action in actions:
      needed = dependencies(schedule, action)
      assert all(place[other] < place[action] for other in needed)


@given(schedules())
def test_files_and_drawings_have_every_action(schedule: Schedule) -> None:
  assert text.from_csv(text.to_csv(schedule)) == schedule
  assert text.from_json(text.to_json(schedule)) == schedule
  count = sum(map(len, schedule.actions))
  assert len(draw.lists(schedule).split()) == count + schedule.num_devices
  rows = draw.ticks(simulate(schedule, StageTimes.equal(schedule.num_stages)))
  work = sum(a.size * len(a.kind) for actions in schedule.actions for a in actions)
  updates = schedule.num_stages * len(schedule.placement)
  drawn = sum(len(row) - 1 - row.count(".") for row in rows.splitlines())
  assert drawn == work - updates


@given(st.one_of(schedules(), st.sampled_from(made.ALL)), st.data())
@settings(max_examples=400)
def test_a_changed_list_is_refused_and_the_action_named(
  schedule: Schedule, data: st.DataObject
) -> None:
  device = data.draw(st.integers(0, schedule.num_devices - 1))
  actions = list(schedule.actions[device])
  index = data.draw(st.integers(0, len(actions) - 1))
  action = actions[index]
  how = data.draw(st.sampled_from(["remove", "repeat", "misplace", "early", "late"]))
  lists = list(map(list, schedule.actions))
  if how == "remove":
    del lists[device][index]
  elif how == "repeat":
    lists[device].insert(data.draw(st.integers(0, len(actions))), action)
  elif how == "misplace":
    del lists[device][index]
    lists[(device + 1) % len(lists)].append(action)
    if len(lists) == 1:
      return
  else:
    # Before something it needs, or behind something that needs it.
    neighbours = [
      other
      for other in actions
      if (how == "early" and other in dependencies(schedule, action))
      or (how == "late" and action in dependencies(schedule, other))
    ]
    if not neighbours:
      return
    other = data.draw(st.sampled_from(neighbours))
    lists[device].remove(action)
    place = lists[device].index(other)
    lists[device].insert(place if how == "early" else place + 1, action)
  changed = dataclasses.replace(schedule, actions=tuple(map(tuple, lists)))
  if action.kind == "R" and how == "remove":
    validate(changed)  # that micro-batch keeps its activations
    return
  with pytest.raises(
    ValueError, match=f"^{schedule.name.replace('+', '[+]')}"
  ) as caught:
    validate(changed)
  assert f"stage {action.stage}" in str(caught.value) or action.kind == "U"
