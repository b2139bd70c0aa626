from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule import made
from tfpipe.schedule import NAMES, Action, Schedule, make, validate
from tfpipe.simulate import StageTimes, period, simulate
from tfpipe.timeline import Secs, Timeline

SIZES = [(k, m) for k in range(1, 7) for m in range(1, 13)]
TIMES = [(1, 1, 1), (2, 1, 1), (1, 3, 2), (Fraction(1, 3), Fraction(1, 2), 1)]


def run(schedule: Schedule, transfer_secs: Secs = 0) -> Timeline:
  times = StageTimes.equal(schedule.num_stages)
  return simulate(schedule, times, transfer_secs)


# Forward 1, backward 2, stages equal: K, M, without and with recomputation.
@pytest.mark.parametrize(
  ("k", "m", "makespan", "bubble", "with_remat", "bubble_with_remat"),
  [
    (4, 8, 33, 0.2727, 41, 0.4146),
    (4, 4, 21, 0.4286, 25, 0.5200),
    (2, 32, 99, 0.0303, 131, 0.2672),
    (8, 32, 117, 0.1795, 149, 0.3557),
  ],
)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_published_step_times_come_out(
  name: str,
  k: int,
  m: int,
  makespan: int,
  bubble: float,
  with_remat: int,
  bubble_with_remat: float,
) -> None:
  for remat, time, share in (
    (False, makespan, bubble),
    (True, with_remat, bubble_with_remat),
  ):
    timeline = run(make(name, k, m, remat))
    assert timeline.makespan == timeline.longest_span == time
    assert timeline.waste == pytest.approx(share, abs=5e-5)
    assert timeline.span_waste == timeline.waste
    assert timeline.busy == ((3 + remat) * m,) * k


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("f", "b", "w"), TIMES)
def test_equal_stages_take_one_fill_and_drain(
  name: str, f: Secs, b: Secs, w: Secs
) -> None:
  for k, m in SIZES:
    timeline = simulate(make(name, k, m), StageTimes.equal(k, f, b, w))
    assert timeline.makespan == (m + k - 1) * (f + b + w)
    assert timeline.waste == pytest.approx((k - 1) / (m + k - 1))


@pytest.mark.parametrize("r", [0, Fraction(1, 2), 1, 2])
def test_gpipe_recomputes_while_it_waits(r: Secs) -> None:
  for k, m in SIZES:
    times = StageTimes([1] * k, [1] * k, [1] * k, recompute=[r] * k)
    timeline = simulate(make("gpipe", k, m, remat=True), times)
    assert timeline.makespan == m * (1 + r + 2) + (k - 1) * (1 + 2)


def test_1f1b_with_recomputation_takes_as_long_as_gpipe() -> None:
  for k, m in SIZES:
    assert run(make("1f1b", k, m, remat=True)).makespan == 4 * m + 3 * (k - 1)
    assert run(make("gpipe", k, m, remat=True)).makespan == 4 * m + 3 * (k - 1)


@pytest.mark.parametrize("c", [Fraction(1, 4), Fraction(1, 2), 1])
def test_gpipe_hides_transfers_but_for_fill_and_drain(c: Secs) -> None:
  for k, m in SIZES:
    expected = 3 * (m + k - 1) + 2 * c * (k - 1)
    assert run(make("gpipe", k, m), c).makespan == expected


@pytest.mark.parametrize("c", [Fraction(1, 4), Fraction(1, 2), 1])
def test_1f1b_exposes_transfers(c: Secs) -> None:
  for k in range(2, 7):
    for m in range(k, 5 * k, k):
      exposed = 2 * c * (k - 1) + 2 * c * (Fraction(m * (k - 1), k) - 1)
      assert run(make("1f1b", k, m), c).makespan == 3 * (m + k - 1) + exposed


def test_an_unequal_pipeline_waits_for_its_slowest_stage() -> None:
  forward = (1, 3, 1, 1)
  assert simulate(
    make("1f1b", 4, 8), StageTimes(forward, forward, forward)
  ).makespan == (75)


def test_each_border_may_have_its_own_transfer_time() -> None:
  timeline = simulate(make("gpipe", 3, 1), StageTimes.equal(3), [10, 100])
  assert timeline.makespan == 9 + 2 * 110


@pytest.mark.parametrize(
  ("schedule", "per_stage", "makespan"),
  [
    (made.interleaved(), Fraction(1, 2), Fraction(27, 2)),
    (made.chimera_two(), 1, 6),
    (made.chimera(4, 4), 1, 16),
    (made.chimera(4, 8), 1, 30),
    (made.chimera(8, 32), 1, 126),
    (made.chimera(4, 8, size=2), 1, 28),
    (made.chimera(8, 32, size=2), 1, 108),
    # Backward halving: the same lists, micro-batches counted in halves.
    (made.chimera(4, 16, size=2), Fraction(1, 2), 26),
    (made.zero_bubble_two(), 1, 10),
    (made.zero_bubble_h1(4, 8), 1, 27),
    (made.zero_bubble_h1(8, 32), 1, 103),
    (made.stream(4, 9), 1, 36),
    (made.stream(3, 4, per_update=4), 1, 54),
  ],
)
def test_other_schedules_are_only_other_data(
  schedule: Schedule, per_stage: Secs, makespan: Secs
) -> None:
  times = StageTimes.equal(schedule.num_stages, per_stage, per_stage, per_stage)
  assert simulate(schedule, times).makespan == makespan


def test_nothing_is_transferred_within_a_device() -> None:
  # A V: the second half of the stages comes back over the same devices.
  schedule = Schedule(
    name="v",
    num_stages=4,
    num_micro_batches=1,
    placement=((0, 1, 1, 0),),
    actions=(
      made.actions("F0:0 F3:0 BW3:0 BW0:0 U0:0 U3:0"),
      made.actions("F1:0 F2:0 BW2:0 BW1:0 U1:0 U2:0"),
    ),
  )
  assert run(schedule, 10).makespan == 12 + 4 * 10


@given(
  st.sampled_from(["gpipe", "1f1b"]),
  st.integers(1, 4),
  st.integers(1, 6),
  st.data(),
)
def test_times_equal_those_of_a_clock(
  name: str, k: int, m: int, data: st.DataObject
) -> None:
  secs = st.lists(st.integers(1, 5), min_size=k, max_size=k)
  f, b, w = data.draw(secs), data.draw(secs), data.draw(secs)
  c = data.draw(st.integers(0, 3))
  schedule = make(name, k, m)
  timeline = simulate(schedule, StageTimes(f, b, w), c)
  ends = clock(schedule, f, [x + y for x, y in zip(b, w, strict=True)], c)
  assert {
    (s.action.kind, s.action.stage, s.action.micro_batch): s.end
    for s in timeline.spans
    if s.action.kind != "U"
  } == ends


def clock(
  schedule: Schedule, forward: list[int], backward: list[int], transfer: int
) -> dict[tuple[str, int, int], int]:
  """Steps through time: at each tick, an idle device starts if it may."""
  last = schedule.num_stages - 1
  todo = [[a for a in actions if a.kind != "U"] for actions in schedule.actions]
  free, ends, now = [0] * (last + 1), {}, 0
  while any(todo):
    for s, actions in enumerate(todo):
      if not actions or free[s] > now:
        continue
      kind, _, m, *_ = actions[0]
      if kind == "F":
        source = ("F", s - 1, m) if s else None
      else:
        source = ("BW", s + 1, m) if s < last else None
      if source is None or (source in ends and ends[source] + transfer <= now):
        free[s] = ends[kind, s, m] = now + (forward if kind == "F" else backward)[s]
        del actions[0]
    now += 1
  return ends


@pytest.mark.parametrize("name", NAMES)
def test_latency_only_delays(name: str) -> None:
  schedule = make(name, 4, 8)
  times = StageTimes.equal(schedule.num_stages)
  spans = [simulate(schedule, times, c).makespan for c in (0, Fraction(1, 2), 1, 3)]
  assert spans == sorted(spans)
  assert spans[0] < spans[-1]


def test_a_link_is_occupied_by_one_transfer_after_the_other() -> None:
  # Forwards leave at 1, 2, 3, 4, and the link takes 3 for each: there at 4, 7, 10, 13,
  # and with a latency of 1 one later. Gradients have a way of their own.
  schedule = Schedule(
    name="forwards first",
    num_stages=2,
    num_micro_batches=4,
    placement=((0, 1),),
    actions=(
      made.actions("F0:0 F0:1 F0:2 F0:3 BW0:0 BW0:1 BW0:2 BW0:3 U0:0"),
      made.actions("F1:0 BW1:0 F1:1 BW1:1 F1:2 BW1:2 F1:3 BW1:3 U1:0"),
    ),
  )
  times = StageTimes.equal(2)
  for latency in (0, 1):
    starts = [
      span.start
      for span in simulate(schedule, times, latency, 3).spans
      if span.action.kind == "F" and span.action.stage == 1
    ]
    assert starts == [t + latency for t in (4, 7, 10, 13)]
  # The last backward ends at 16, its gradient has 3 to go, and 2 of work are left.
  assert simulate(schedule, times, 0, 3).makespan == 16 + 3 + 2


def test_a_slow_link_takes_as_long_as_all_that_crosses_it() -> None:
  for m in (4, 8, 16):
    timeline = simulate(make("gpipe", 2, m), StageTimes.equal(2), link_secs=10)
    # First forward, m transfers, last forward; and back again, overlapping.
    assert timeline.makespan >= 10 * m + 1 + 1
    hidden = simulate(make("gpipe", 2, m), StageTimes.equal(2), transfer_secs=10)
    assert hidden.makespan < timeline.makespan


def test_the_stages_of_a_device_share_its_links() -> None:
  # Two stages a device: four borders, of which three cross, over two links forward.
  schedule = make("looped_bfs", 2, 1)
  one = simulate(schedule, StageTimes.equal(4), link_secs=5)
  assert one.makespan == 4 * 3 + 2 * 3 * 5


def test_each_border_may_occupy_its_link_for_its_own_time() -> None:
  timeline = simulate(make("gpipe", 3, 1), StageTimes.equal(3), [1, 2], [10, 100])
  assert timeline.makespan == 9 + 2 * 113


def test_micro_batches_that_are_sent_together_take_their_times_together() -> None:
  schedule = Schedule(
    name="two at once",
    num_stages=2,
    num_micro_batches=2,
    placement=((0, 1),),
    actions=(
      made.actions("F0:0x2 BW0:0x2 U0:0"),
      made.actions("F1:0x2 BW1:0x2 U1:0"),
    ),
  )
  for latency, occupied in ((5, 0), (0, 5), (2, 3)):
    timeline = simulate(schedule, StageTimes.equal(2), latency, occupied)
    # Of both stages 2 forwards and 2 backwards; each way, two times 5.
    assert timeline.makespan == 2 * (2 + 4) + 2 * 2 * 5


def test_an_update_waits_for_backwards_on_other_devices_but_for_no_transfer() -> None:
  # A copy of each stage on each device, and stage 1 updated as soon as it can be.
  schedule = Schedule(
    name="early update",
    num_stages=2,
    num_micro_batches=2,
    placement=((0, 1), (1, 0)),
    actions=(
      made.actions("F0:0 F1:1/1 BW1:1/1 U1:0/1 BW0:0 U0:0"),
      made.actions("F0:1/1 F1:0 BW1:0 U1:0 BW0:1/1 U0:0/1"),
    ),
  )
  timeline = simulate(schedule, StageTimes.equal(2), 10)
  starts = {span.action: span.start for span in timeline.spans}
  # Forwards take 1, cross in 10 and take 1; the backward of stage 1 takes 2.
  assert starts[Action("U", 1, 0)] == starts[Action("U", 1, 0, 1)] == 14
  assert starts[Action("BW", 0, 0)] == 24


def test_a_device_that_is_free_goes_on_with_the_next_step() -> None:
  # ZB-H2 takes 27 from an idle start, and 24 from one step to the next.
  times = StageTimes.equal(4)
  assert simulate(make("zb_h2", 4, 8), times).makespan == 27
  assert period(make("zb_h2", 4, 8), times) == 24


@given(st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 6), st.data())
def test_a_period_is_that_of_many_steps_in_a_row(
  name: str, half: int, m: int, data: st.DataObject
) -> None:
  k = 2 * half
  schedule = make(name, k, 2 * m)
  count = schedule.num_stages
  secs = st.lists(st.integers(1, 5), min_size=count, max_size=count)
  times = StageTimes(*(data.draw(secs) for _ in range(3)))
  c = data.draw(st.integers(0, 2))
  steps = 24
  ends = sorted(
    span.end
    for span in simulate(repeated(schedule, steps), times, c).spans
    if span.action.kind == "U"
  )
  copies = count * len(schedule.placement)
  last, before = (max(ends[: copies * n]) for n in (steps, steps // 2))
  # Ends of steps may overlap; over many steps that is little.
  mean = (last - before) / (steps - steps // 2)
  assert period(schedule, times, c) == pytest.approx(mean, rel=0.05)


def repeated(schedule: Schedule, steps: int) -> Schedule:
  """Gives a run of several steps, each stage updating on its own, as one schedule."""
  m = schedule.num_micro_batches
  return Schedule(
    name=schedule.name,
    num_stages=schedule.num_stages,
    num_micro_batches=m * steps,
    placement=schedule.placement,
    actions=tuple(
      tuple(
        action._replace(micro_batch=step)
        if action.kind == "U"
        else action._replace(micro_batch=action.micro_batch + m * step, version=step)
        for step in range(steps)
        for action in actions
      )
      for actions in schedule.actions
    ),
  )


def test_a_run_of_steps_in_a_row_is_sound() -> None:
  for name in NAMES:
    validate(repeated(make(name, 4, 8), 3))


def test_times_must_fit_the_schedule() -> None:
  with pytest.raises(
    ValueError, match="times are for 3 stages, but schedule gpipe has 2"
  ):
    simulate(make("gpipe", 2, 2), StageTimes.equal(3))
  with pytest.raises(ValueError, match="transfer_secs has 2 times, expected 1"):
    simulate(make("gpipe", 2, 2), StageTimes.equal(2), [1, 1])
  with pytest.raises(ValueError, match="link_secs has 2 times, expected 1"):
    period(make("gpipe", 2, 2), StageTimes.equal(2), 0, [1, 1])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_impossible_times_are_refused(value: float) -> None:
  with pytest.raises(ValueError, match=rf"weight_gradient\[1\] is {value}: expected"):
    StageTimes([1, 1], [1, 1], [1, value])
  with pytest.raises(ValueError, match=rf"transfer_secs\[0\] is {value}"):
    simulate(make("gpipe", 2, 2), StageTimes.equal(2), value)


def test_each_stage_needs_each_time() -> None:
  with pytest.raises(ValueError, match="input_gradient has 1 times, expected 2"):
    StageTimes([1, 1], [1], [1, 1])
  with pytest.raises(ValueError, match="recompute has 3 times, expected 2"):
    StageTimes([1, 1], [1, 1], [1, 1], recompute=[1, 1, 1])
