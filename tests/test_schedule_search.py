from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.test_formulas import MEASURED
from tests.schedule.test_generators import weight_orders
from tfpipe.schedule import (
  Schedule,
  in_flight,
  make,
  validate,
  without_needless_recomputation,
)
from tfpipe.schedule_search import zero_bubble
from tfpipe.simulate import StageTimes, simulate

# What the input gradient leaves of a Transformer layer's activations, in bytes a token
# and sequence: 32 h of 34 h + 5 a s with h = 2304, a = 24 heads, s = 1024 (the paper's
# 1.5B model).
KEPT = 32 * 2304 / (34 * 2304 + 5 * 24 * 1024)
SEARCHED = {24: 0.0433, 32: 0.0039, 64: 0.0026}


def cost(schedule: Schedule, times: StageTimes, transfer_secs: float = 0) -> float:
  return float(simulate(schedule, times, transfer_secs).longest_span)


def step(schedule: Schedule, times: StageTimes, transfer_secs: float = 0) -> float:
  return float(simulate(schedule, times, transfer_secs).makespan)


@pytest.mark.parametrize(("m", "f", "b", "w", "c", "bubbles"), MEASURED)
def test_bubbles_of_the_paper_at_its_memory_limits_come_out(
  m: int, f: float, b: float, w: float, c: float, bubbles: tuple[float, ...]
) -> None:
  times = StageTimes.equal(8, f, b, w)
  for limit, bubble in ((8, bubbles[1]), (16, SEARCHED[m])):
    schedule = zero_bubble(times, m, limit, gradient_keeps=[KEPT] * 8, transfer_secs=c)
    validate(schedule)
    found = simulate(schedule, times, c).span_waste
    assert found == pytest.approx(bubble, abs=5e-5)


@pytest.mark.parametrize(("m", "f", "b", "w", "c", "bubbles"), MEASURED)
def test_twice_the_memory_beats_zb_h2_even_if_nothing_is_freed_before_w(
  m: int, f: float, b: float, w: float, c: float, bubbles: tuple[float, ...]
) -> None:
  times = StageTimes.equal(8, f, b, w)
  schedule = zero_bubble(times, m, 16, transfer_secs=c)
  assert simulate(schedule, times, c).span_waste < bubbles[2] - 0.002


def test_with_the_memory_of_zb_h1_and_h2_it_takes_their_time() -> None:
  for k in range(1, 7):
    for m in (k + 1, 2 * k, 3 * k + 1):
      times = StageTimes.equal(k)
      for name, limit in (("zb_h1", k), ("zb_h2", 2 * k - 1)):
        schedule = zero_bubble(times, m, limit)
        validate(schedule, max_kept=limit)
        assert cost(schedule, times) <= cost(make(name, k, m), times)
        if name == "zb_h1" or m >= 2 * k - 1:
          assert cost(schedule, times) == cost(make(name, k, m), times)


def test_a_v_takes_the_time_of_zb_v_and_less_if_micro_batches_are_few() -> None:
  for k, m, span in ((4, 8, 24), (8, 32, 96), (2, 32, 96), (4, 4, Fraction(27, 2))):
    half = Fraction(1, 2)
    times = StageTimes.equal(2 * k, half, half, half)
    schedule = zero_bubble(times, m, 2 * k, stages_per_device=2)
    validate(schedule, max_kept=k)
    assert schedule.placement == make("zb_v", k, m).placement
    assert cost(schedule, times) == span


def test_more_memory_is_never_used_for_nothing() -> None:
  times = StageTimes.equal(4)
  spans = [cost(zero_bubble(times, 8, limit), times) for limit in range(1, 8)]
  # One micro-batch at a time takes 4 forwards, 4 input gradients and a last W each.
  assert spans[0] == 8 * 9
  assert spans == sorted(spans, reverse=True)
  assert spans[3] == 27
  assert spans[6] == 24


@st.composite
def stage_times(draw: st.DrawFn, num_stages: int) -> StageTimes:
  secs = st.lists(st.integers(1, 9), min_size=num_stages, max_size=num_stages)
  return StageTimes(*(draw(secs) for _ in range(4)))


@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.booleans())
@settings(max_examples=60)
def test_it_is_sound_keeps_to_the_limit_and_is_never_worse_than_zb_h1_and_h2(
  data: st.DataObject, k: int, m: int, remat: bool
) -> None:
  times = data.draw(stage_times(k))
  limit = data.draw(st.integers(1, 2 * k))
  c = data.draw(st.integers(0, 3))
  schedule = zero_bubble(times, m, limit, transfer_secs=c, remat=remat)
  validate(schedule)
  assert schedule.name == ("zb_auto+R" if remat else "zb_auto")
  if not remat:
    validate(schedule, max_kept=limit)
  for order in weight_orders(schedule).values():
    assert order == list(range(m))
  for name in ("zb_h1", "zb_h2", "1f1b"):
    if max(in_flight(make(name, k, m)).kept) <= limit:
      published = without_needless_recomputation(make(name, k, m, remat))
      assert step(schedule, times, c) <= step(published, times, c)


@given(st.data(), st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=60)
def test_a_v_is_sound_at_any_limit_that_allows_a_micro_batch(
  data: st.DataObject, k: int, m: int
) -> None:
  times = data.draw(stage_times(2 * k))
  limit = data.draw(st.integers(2, 4 * k))
  schedule = zero_bubble(times, m, limit, stages_per_device=2)
  validate(schedule, max_kept=Fraction(limit, 2))
  if limit >= 2 * k:
    assert step(schedule, times) <= step(make("zb_v", k, m), times)


def test_a_step_that_ends_earlier_is_better_than_a_shorter_span_of_a_device() -> None:
  # ZB-H1 takes 90. Another that is found has a span of less, and takes 92.
  times = StageTimes([3, 3, 2, 7], [6, 9, 7, 6], [6, 5, 6, 1])
  assert step(make("zb_h1", 4, 4), times) == 90
  assert step(zero_bubble(times, 4, 8), times) == 90


@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.sampled_from([1, 2]))
@settings(max_examples=60)
def test_memory_may_differ_between_stages_and_grow_in_the_backward(
  data: st.DataObject, k: int, m: int, v: int
) -> None:
  count = k * v
  times = data.draw(stage_times(count))
  sizes = st.lists(st.integers(0, 7), min_size=count, max_size=count)
  forward = [1 + size for size in data.draw(sizes)]
  gradient = data.draw(sizes)
  limit = max(
    sum(forward[s] for s in stages)
    + max(max(0, gradient[s] - forward[s]) for s in stages)
    for stages in ({d, count - 1 - d} if v == 2 else {d} for d in range(k))
  ) + data.draw(st.integers(0, 20))
  schedule = zero_bubble(
    times,
    m,
    limit,
    stages_per_device=v,
    forward_keeps=forward,
    gradient_keeps=gradient,
  )
  validate(schedule)
  for actions in schedule.actions:
    held = [
      {"F": forward[a.stage], "W": -gradient[a.stage], "BW": -forward[a.stage]}.get(
        a.kind, gradient[a.stage] - forward[a.stage]
      )
      for a in actions
      if a.kind != "U"
    ]
    assert max(itertools.accumulate(held)) <= limit
    assert sum(held) == 0


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"num_micro_batches": 0}, "num_micro_batches is 0: expected a whole number"),
    ({"stages_per_device": 3}, "stages_per_device is 3: expected 1, or 2 .*, 3, is"),
    ({"stages_per_device": 2}, "stages_per_device is 2: expected 1, or 2 .*, 3, is"),
    ({"forward_keeps": [1, 1]}, r"forward_keeps is \[1, 1\]: expected .* 3 stages"),
    ({"gradient_keeps": [1, -1, 1]}, r"gradient_keeps is \[1, -1, 1\]: expected a"),
    ({"memory_limit": 0.5}, r"memory_limit is 0\.5, but device 0 needs 1 for a single"),
    ({"forward_keeps": [1, 5, 1]}, "memory_limit is 4, but device 1 needs 5 for a"),
    ({"transfer_secs": [1]}, "transfer_secs has 1 times, expected 2"),
  ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], match: str) -> None:
  arguments = {
    "times": StageTimes.equal(3),
    "num_micro_batches": 4,
    "memory_limit": 4,
    **changes,
  }
  with pytest.raises(ValueError, match=match):
    zero_bubble(**arguments)  # type: ignore[arg-type]


def test_sizes_that_would_take_minutes_are_refused_by_name() -> None:
  times = StageTimes.equal(128)
  with pytest.raises(
    ValueError, match=r"num_micro_batches is 512: .* most 64 with 128"
  ):
    zero_bubble(times, 512, 256)
