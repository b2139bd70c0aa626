from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe import schedule
from tfpipe.schedule import Action
from tfpipe.simulate import StageTimes, simulate
from tfpipe.timeline import Secs, Span, Timeline
from tfpipe.timeline_compare import Shares, compare, median_step, shares

GPIPE = schedule.make("gpipe", 2, 1)
GPIPE_OF_TWO = schedule.make("gpipe", 2, 2)


def span(kind: schedule.Kind, device: int, micro: int, start: Secs, end: Secs) -> Span:
  """A span of stage `device`, as stages are placed in a straight pipeline."""
  return Span(device, Action(kind, device, micro), start, end)


def one_micro_batch() -> Timeline:
  """Device 0 works 0-2, 11-16, device 1 works 3-9; the values take 1 and 2."""
  return Timeline(
    (
      span("F", 0, 0, 0, 2),
      span("F", 1, 0, 3, 5),
      span("BW", 1, 0, 5, 9),
      span("BW", 0, 0, 11, 15),
      span("U", 0, 0, 15, 16),
      span("U", 1, 0, 9, 9),
    ),
    num_devices=2,
  )


def test_every_moment_of_a_device_belongs_to_one_share() -> None:
  # Device 0: busy 2 + 4 + 1; from 2 to 9 it waits, from 9 to 11 the gradient is on its
  # way. Device 1: busy 2 + 4; it waits from 0 to 2 and, at its end, from 9 to 16.
  assert shares(GPIPE, one_micro_batch()) == Shares(
    step=16,
    busy=Fraction(7 + 6, 2),
    waiting=Fraction(7 + 9, 2),
    transfer=Fraction(2 + 1, 2),
    host=0,
    bubble=1 - 13 / 32,
    imbalance=7 / 6.5,
  )


def test_what_waits_longer_than_the_quickest_value_waits_for_the_host() -> None:
  # Both forwards of device 1 have their input 1 after it is computed: at 3 and 5. The
  # second starts at 8. Its backwards follow at once, as do those of device 0.
  timeline = Timeline(
    (
      span("F", 0, 0, 0, 2),
      span("F", 0, 1, 2, 4),
      span("F", 1, 0, 3, 5),
      span("F", 1, 1, 8, 10),
      span("BW", 1, 0, 10, 12),
      span("BW", 1, 1, 12, 14),
      span("BW", 0, 0, 12, 14),
      span("BW", 0, 1, 14, 16),
    ),
    num_devices=2,
  )
  found = shares(GPIPE_OF_TWO, timeline)
  assert (found.busy, found.waiting) == (8, Fraction(8 + 2 + 2, 2))
  assert (found.transfer, found.host) == (Fraction(1, 2), Fraction(3, 2))


def test_a_gap_with_all_values_on_the_device_is_the_hosts() -> None:
  made = schedule.make("gpipe", 1, 1)
  spans = (span("F", 0, 0, 1, 2), span("BW", 0, 0, 5, 7), span("U", 0, 0, 7.5, 8))
  found = shares(made, Timeline(spans, 1))
  assert (found.busy, found.host, found.waiting) == (3.5, 3.5, 0)


def test_an_update_waits_for_the_gradients_of_all_devices() -> None:
  # Device 1 has its own at 6 and waits for the other's until 9; then the host is late.
  timeline = Timeline(
    (
      span("F", 0, 0, 0, 2),
      span("F", 1, 0, 2, 4),
      span("BW", 1, 0, 4, 6),
      span("BW", 0, 0, 6, 9),
      span("U", 0, 0, 10, 12),
      span("U", 1, 0, 10, 12),
    ),
    2,
  )
  found = shares(GPIPE, timeline)
  assert (found.step, found.host, found.transfer) == (12, 1, 0)
  assert (found.busy, found.waiting) == (Fraction(7 + 6, 2), Fraction(4 + 5, 2))


def test_an_action_without_a_span_passes_its_values_on() -> None:
  # Without the last stage's backward, the first waits for the forward behind it.
  spans = (span("F", 0, 0, 0, 2), span("F", 1, 0, 2, 5), span("BW", 0, 0, 6, 7))
  found = shares(GPIPE, Timeline(spans, 2))
  assert (found.waiting, found.transfer) == (Fraction(3 + 4, 2), Fraction(1, 2))


def test_time_of_spans_that_overlap_counts_once() -> None:
  made = schedule.make("gpipe", 1, 2)
  spans = (span("F", 0, 0, 0, 4), span("F", 0, 1, 1, 3), span("BW", 0, 0, 3, 6))
  found = shares(made, Timeline(spans, 1))
  assert (found.step, found.busy, found.host) == (6, 6, 0)


@given(
  st.sampled_from(schedule.NAMES),
  st.integers(1, 3),
  st.integers(1, 4),
  st.booleans(),
  st.data(),
)
def test_in_a_simulated_step_the_host_is_never_late(
  name: str, half: int, m: int, remat: bool, data: st.DataObject
) -> None:
  made = schedule.make(name, 2 * half, 2 * m, remat)
  k = made.num_stages
  f, b, w, u = (
    data.draw(st.lists(st.integers(0, 9), min_size=k, max_size=k)) for _ in range(4)
  )
  borders = data.draw(st.lists(st.integers(0, 5), min_size=k - 1, max_size=k - 1))
  found = shares(made, simulate(made, StageTimes(f, b, w, update=u), borders))
  assert found.host == 0
  assert found.busy + found.waiting + found.transfer == found.step
  if not any(borders):
    assert found.transfer == 0


def test_recomputation_is_work_and_the_bubble_is_what_is_not_busy() -> None:
  made = schedule.make("gpipe", 2, 2, remat=True)
  found = shares(made, simulate(made, StageTimes.equal(2)))
  # 22 units, of which both devices wait 3: see the order in test_plan.
  assert found.bubble == pytest.approx(6 / 22)
  assert found.bubble == pytest.approx(float(1 - found.busy / found.step))


def test_transfers_that_wait_for_each_other_look_like_the_host() -> None:
  # F0 and F1 leave at 1 and 2, but the link takes 4 for each: F1 is there at 9, and not
  # at 2 + 4, as spans alone suggest.
  made = schedule.make("gpipe", 2, 2)
  found = shares(made, simulate(made, StageTimes.equal(2), 0, 4))
  assert found.host > 0


def test_a_timeline_of_something_else_is_refused() -> None:
  alone = Timeline((span("F", 0, 0, 0, 1),), 1)
  with pytest.raises(ValueError, match="has 1 devices, but schedule gpipe has 2"):
    shares(GPIPE, alone)
  two_steps = Timeline((span("F", 0, 0, 0, 1), span("F", 0, 0, 5, 6)), 2)
  with pytest.raises(ValueError, match=r"F .*stage 0.* has two spans"):
    shares(GPIPE, two_steps)
  with pytest.raises(ValueError, match=r"micro-batch 3\) is not in schedule gpipe"):
    shares(GPIPE, Timeline((span("F", 0, 3, 0, 1),), 2))
  elsewhere = Timeline((Span(1, Action("F", 0, 0), 0, 1),), 2)
  with pytest.raises(ValueError, match=r"ran on device 1, but .* on device 0"):
    shares(GPIPE, elsewhere)
  with pytest.raises(ValueError, match="no step"):
    compare(GPIPE, one_micro_batch(), [])


def test_the_median_step_is_one_that_was_measured() -> None:
  def lasting(secs: int) -> Timeline:
    return Timeline((span("F", 0, 0, 1, 1 + secs),), 1)

  assert median_step([lasting(secs) for secs in (9, 2, 5)]) == 2
  assert median_step([lasting(secs) for secs in (9, 2, 5, 4)]) == 3
  assert median_step([lasting(3), lasting(3)]) == 0


def milliseconds(timeline: Timeline) -> Timeline:
  return Timeline(
    tuple(s._replace(start=s.start / 1000, end=s.end / 1000) for s in timeline.spans),
    timeline.num_devices,
  )


def test_the_table_has_each_quantity_with_its_difference() -> None:
  predicted = milliseconds(simulate(GPIPE, StageTimes([2, 2], [2, 2], [2, 2])))
  measured = milliseconds(one_micro_batch())
  slower = Timeline(tuple(s._replace(end=1) for s in measured.spans), 2)
  # Predicted: 12 ms, each device busy 6, half of its time.
  found = compare(GPIPE, predicted, [slower, measured, predicted])
  assert (found.step, found.num_steps) == (1, 3)
  assert found.text() == "\n".join(
    [
      "               predicted  measured       difference",
      "step time          12 ms     16 ms   +4 ms (+33.3%)",
      "busy                6 ms    6.5 ms  +500 us (+8.3%)",
      "waiting             6 ms      8 ms   +2 ms (+33.3%)",
      "transfer             0 s    1.5 ms          +1.5 ms",
      "host overhead        0 s       0 s             +0 s",
      "bubble             50.0%     59.4%      +9.4 points",
      "imbalance          1.000     1.077           +0.077",
      "measured: the median of 3 steps by step time",
    ]
  )
  faster = compare(GPIPE, measured, [predicted])
  assert faster.rows()[0] == ("step time", "16 ms", "12 ms", "-4 ms (-25.0%)")
  assert "median" not in faster.text()


def test_values_of_more_micro_batches_may_be_longer_on_their_way() -> None:
  made = schedule.Schedule(
    name="two and one",
    num_stages=2,
    num_micro_batches=3,
    placement=((0, 1),),
    actions=(
      (
        Action("F", 0, 0, size=2),
        Action("F", 0, 2),
        Action("BW", 0, 0, size=2),
        Action("BW", 0, 2),
        Action("U", 0, 0),
      ),
      (
        Action("F", 1, 2),
        Action("F", 1, 0, size=2),
        Action("BW", 1, 0, size=2),
        Action("BW", 1, 2),
        Action("U", 1, 0),
      ),
    ),
  )
  schedule.validate(made)
  # The single micro-batch is there at 3 + 5, both others at 2 + 10.
  found = shares(made, simulate(made, StageTimes.equal(2), 5))
  assert found.host == 0
  assert found.transfer > 0
