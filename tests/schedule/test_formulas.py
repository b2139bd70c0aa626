"""Closed forms of the papers, over grids of sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.schedule import made
from tfpipe.schedule import Schedule, in_flight, make
from tfpipe.simulate import StageTimes, period, simulate
from tfpipe.timeline import Secs, Timeline

SIZES = [(k, m) for k in range(1, 7) for m in range(1, 13)]
THIRD = Fraction(1, 3)
# Forward, input gradient, weight gradient.
TIMES = [
  (f, b, w)
  for f in (1, 2, THIRD)
  for b in (1, Fraction(3, 2), 4)
  for w in (1, Fraction(1, 2), 3)
]


def run(
  schedule: Schedule, f: Secs = 1, b: Secs = 1, w: Secs = 1, transfer: Secs = 0
) -> Timeline:
  """Simulates equal stages; f, b, w are those of a whole device."""
  part = Fraction(schedule.num_devices, schedule.num_stages)
  times = StageTimes.equal(schedule.num_stages, part * f, part * b, part * w)
  return simulate(schedule, times, transfer)


@pytest.mark.parametrize("c", [Fraction(1, 4), 1])
def test_eager_1f1b_hides_transfers_but_for_fill_and_drain(c: Secs) -> None:
  for k in range(1, 7):
    for m in range(2 * k, 4 * k + 1, k):
      timeline = run(make("eager_1f1b", k, m), transfer=c)
      assert timeline.makespan == 3 * (m + k - 1) + 2 * c * (k - 1)


def test_eager_1f1b_is_as_fast_as_1f1b_and_keeps_about_twice_as_much() -> None:
  for k, m in SIZES:
    schedule = make("eager_1f1b", k, m)
    assert run(schedule).makespan == 3 * (m + k - 1)
    counts = tuple(min(m, 2 * (k - d) - 1) for d in range(k))
    assert in_flight(schedule) == (counts, counts)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_interleaving_divides_the_bubble_by_the_stages_of_a_device(v: int) -> None:
  for k in range(1, 6):
    for m in range(k, 4 * k + 1):
      schedule = make("interleaved", k, m, stages_per_device=v)
      # For other group sizes than K as well, and so for any number of micro-batches.
      for f, b, w in ((1, 1, 1), (1, 2, 3)):
        ideal = m * (f + b + w)
        exposed = Fraction((k - 1) * (f + b + w), v)
        assert run(schedule, f, b, w).makespan == ideal + exposed
      if m % k == 0:
        counts = tuple(
          min(Fraction(m), Fraction((v - 1) * k + 2 * (k - 1 - d) + 1, v))
          for d in range(k)
        )
        assert in_flight(schedule) == (counts, counts)


@pytest.mark.parametrize("v", [2, 3])
def test_interleaving_costs_memory_on_the_first_device(v: int) -> None:
  for k in range(2, 6):
    first = in_flight(make("interleaved", k, 4 * k, stages_per_device=v)).kept[0]
    assert first / k == 1 + Fraction(k - 1, k * v)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
def test_looped_bfs_has_the_bubble_of_interleaving_and_the_memory_of_gpipe(
  v: int,
) -> None:
  for k in range(1, 6):
    for m in range(k, 13):
      schedule = make("looped_bfs", k, m, stages_per_device=v)
      assert run(schedule).makespan == 3 * m + Fraction(3 * (k - 1), v)
      assert in_flight(schedule) == ((m,) * k, (m,) * k)


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
def test_zb_h1_waits_for_the_difference_of_gradients(f: Secs, b: Secs, w: Secs) -> None:
  for k in range(1, 7):
    for m in (k, k + 1, 3 * k):
      cost = m * (f + b + w) + (k - 1) * (b + max(f - w, 0))
      assert run(make("zb_h1", k, m), f, b, w).longest_span == cost


@pytest.mark.parametrize(("f", "b", "w"), TIMES)
def test_zb_h2_waits_only_if_gradients_take_unequally_long(
  f: Secs, b: Secs, w: Secs
) -> None:
  for k in range(1, 7):
    for m in (2 * k - 1, 2 * k, 4 * k):
      cost = m * (f + b + w) + (k - 1) * max(0, f + b - 2 * w, b - f)
      assert run(make("zb_h2", k, m), f, b, w).longest_span == cost


def test_zb_h1_and_h2_keep_equally_much_on_all_devices() -> None:
  for name, slope in (("zb_h1", 1), ("zb_h2", 2)):
    for k in range(1, 7):
      for m in range(slope * (k - 1) + 1, 15):
        without_backward, kept = in_flight(make(name, k, m))
        assert without_backward == tuple(slope * (k - 1 - d) + 1 for d in range(k))
        assert kept == (slope * (k - 1) + 1,) * k


def test_zb_v_has_no_bubble_at_the_memory_of_1f1b() -> None:
  for k in range(1, 7):
    for m in range(2 * k - 1, 4 * k):
      schedule = make("zb_v", k, m)
      timeline = run(schedule)
      assert timeline.longest_span == 3 * m
      assert period(schedule, StageTimes.equal(2 * k)) == 6 * m
      assert in_flight(schedule) == ((k,) * k, (k,) * k)


def test_interleaved_zero_bubble_is_never_slower_than_interleaved() -> None:
  for v in (1, 2, 3):
    for k in range(1, 6):
      for m in range(1, 13):
        split, whole = (
          run(make(name, k, m, stages_per_device=v)).makespan
          for name in ("zb_interleaved", "interleaved")
        )
        assert split <= whole


def test_interleaved_zero_bubble_of_one_stage_is_zb_h1() -> None:
  for k in range(1, 7):
    for m in range(k, 13):
      schedule = make("zb_interleaved", k, m, stages_per_device=1)
      assert schedule.actions == make("zb_h1", k, m).actions


def test_dualpipe_v_takes_half_a_micro_batch_for_each_device_behind() -> None:
  for k in range(1, 7):
    for m in range(2 * k, 4 * k + 1):
      schedule = make("dualpipe_v", k, m)
      assert run(schedule).makespan == 3 * m + Fraction(k - 1, 2)
      if k > 1:
        kept = (k + Fraction(1, 2),) * k
        assert in_flight(schedule) == (kept, kept)


PAIRS = [(2, 1), (4, 1), (4, 2), (6, 1), (6, 3), (8, 1), (8, 2), (8, 4)]


@pytest.mark.parametrize(("d", "f"), PAIRS)
def test_chimera_with_equal_forward_and_backward_is_as_published(
  d: int, f: int
) -> None:
  for units in (1, 2, 3):
    n = units * d
    timeline = run(
      make("chimera", d, n, num_pairs=f), 1, Fraction(1, 2), Fraction(1, 2)
    )
    assert timeline.makespan == 2 * n + d // f - 2
    bubble = (d - 2 * f) / (2 * f * n + d - 2 * f)
    assert timeline.waste == pytest.approx(bubble)


def test_chimera_waits_between_units_if_a_backward_takes_longer() -> None:
  for d in (2, 4, 6, 8):
    for units in (1, 2, 3):
      n = units * d
      makespan = 3 * n + (units + 1) * (d - 2)
      assert run(make("chimera", d, n)).makespan == makespan


@pytest.mark.parametrize(("d", "f"), PAIRS)
def test_chimera_doubling_and_halving_do_not(d: int, f: int) -> None:
  for units in (1, 2):
    n = units * 2 * d
    doubled = run(make("chimera_doubling", d, n, num_pairs=f))
    assert doubled.makespan == 3 * n + 2 * (d // f - 2)
    # 2 n halves, each of half the times.
    schedule = make("chimera_halving", d, 2 * n, num_pairs=f)
    halved = run(schedule, Fraction(1, 2), Fraction(1, 2), Fraction(1, 2))
    assert halved.makespan == 3 * n + d // f - 2


@pytest.mark.parametrize(("d", "f"), PAIRS)
def test_chimera_keeps_almost_equally_much_on_all_devices(d: int, f: int) -> None:
  kept = in_flight(make("chimera", d, 2 * d, num_pairs=f)).kept
  assert (min(kept), max(kept)) == (d - d // (2 * f) + 1, d)
  doubled = in_flight(make("chimera_doubling", d, 4 * d, num_pairs=f)).kept
  assert max(doubled) == 2 * d


def test_streams_have_no_flush() -> None:
  for k in range(1, 6):
    for n in range(1, 9):
      assert run(made.stream(k, n)).makespan == 3 * (n + k - 1)
      assert run(made.stream(k, n, per_update=k)).makespan == 3 * (n * k + k - 1)


def test_bubbles_are_as_tabulated() -> None:
  for k, m in SIZES:
    for name, v, least, share in (
      ("gpipe", 0, 1, (k - 1) / (m + k - 1)),
      ("1f1b", 0, 1, (k - 1) / (m + k - 1)),
      ("eager_1f1b", 0, 1, (k - 1) / (m + k - 1)),
      ("interleaved", 3, k, (k - 1) / (3 * m + k - 1)),
      ("looped_bfs", 3, k, (k - 1) / (3 * m + k - 1)),
      ("zb_h1", 0, k, (k - 1) / (3 * m + k - 1)),
      ("zb_h2", 0, 2 * k - 1, 0),
      ("zb_v", 0, 2 * k - 1, 0),
      ("dualpipe_v", 0, 2 * k, (k - 1) / (6 * m + k - 1)),
    ):
      if m >= least:
        timeline = run(make(name, k, m, stages_per_device=v))
        assert timeline.span_waste == pytest.approx(share)
  for d in (2, 4, 6):
    assert run(make("chimera", d, d)).waste == pytest.approx((2 * d - 4) / (5 * d - 4))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager_1f1b"])
def test_recomputation_fills_waits_if_it_is_no_longer_than_a_backward(
  name: str,
) -> None:
  for k, m in SIZES:
    for r in (THIRD, 1, 2):
      if name != "gpipe" and r != 1:
        continue
      times = StageTimes([1] * k, [1] * k, [1] * k, recompute=[r] * k)
      makespan = simulate(make(name, k, m, remat=True), times).makespan
      assert makespan == m * (3 + r) + (k - 1) * 3


# Times of one stage of the paper's 1.5B model on 8 devices, in ms: forward, input and
# weight gradient, transfer; then the bubbles of its table, but for the last, which is
# computed (the paper has about .1055, .0818, .0443).
MEASURED = [
  (24, 18.522, 18.086, 9.337, 0.601, (0.2431, 0.1585, 0.1083, 0.1090)),
  (32, 18.513, 18.086, 9.331, 0.626, (0.1985, 0.1242, 0.0837, 0.0847)),
  (64, 18.546, 18.097, 9.321, 0.762, (0.1240, 0.0674, 0.0444, 0.0461)),
]


@pytest.mark.parametrize(("m", "f", "b", "w", "c", "bubbles"), MEASURED)
def test_bubbles_of_the_zero_bubble_paper_come_out(
  m: int, f: float, b: float, w: float, c: float, bubbles: tuple[float, ...]
) -> None:
  schedules = [
    make("1f1b", 8, m),
    make("zb_h1", 8, m),
    make("zb_h2", 8, m),
    make("interleaved", 8, m, stages_per_device=3),
  ]
  found = [run(schedule, f, b, w, c).span_waste for schedule in schedules]
  assert found == pytest.approx(bubbles, abs=5e-5)
