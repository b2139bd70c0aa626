from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.schedule import NAMES, Schedule, make, validate
from tfpipe.simulate import StageTimes, simulate


def test_updates_take_time_of_their_own() -> None:
  times = StageTimes([1, 1], [1, 1], [1, 1], update=[5, 7])
  timeline = simulate(make("gpipe", 2, 1), times)
  # Both wait for the last gradient, though the second stage has all of its own at 4.
  updates = [span for span in timeline.spans if span.action.kind == "U"]
  assert sorted((span.start, span.end) for span in updates) == [(6, 11), (6, 13)]
  assert timeline.busy == (8, 10)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 3), st.integers(1, 6), st.booleans(), st.data())
def test_updates_begin_together_wherever_they_stand(
  name: str, half: int, m: int, remat: bool, data: st.DataObject
) -> None:
  made_so = make(name, 2 * half, 2 * m, remat)
  count = made_so.num_stages
  secs = st.lists(st.integers(0, 5), min_size=count, max_size=count)
  f, b, w, u = (data.draw(secs) for _ in range(4))
  c = data.draw(st.integers(0, 3))
  without = simulate(made_so, StageTimes(f, b, w), c)
  last = max(span.end for span in without.spans)
  for schedule in (made_so, early_updates(made_so)):
    found = simulate(schedule, StageTimes(f, b, w, update=u), c)
    # All else is as if there were none, and devices do theirs one after the other.
    assert {s for s in found.spans if s.action.kind != "U"} == {
      s for s in without.spans if s.action.kind != "U"
    }
    ends = [last] * schedule.num_devices
    for span in found.spans:
      if span.action.kind == "U" and any(u):
        device = span.device
        assert span.start == ends[device]
        ends[device] += 0 if span.action.pipe else u[span.action.stage]
        assert span.end == ends[device]


def early_updates(schedule: Schedule) -> Schedule:
  """Moves each update as far forward as a list allows; as is, if copies would wait."""
  if len(schedule.placement) > 1:
    return schedule
  lists = []
  for of_device in schedule.actions:
    moved = [a for a in of_device if a.kind != "U"]
    for update in (a for a in of_device if a.kind == "U"):
      needed = [a for a in moved if a.stage == update.stage and "W" in a.kind]
      moved.insert(moved.index(needed[-1]) + 1, update)
    lists.append(tuple(moved))
  early = replace(schedule, actions=tuple(lists))
  validate(early)
  return early
