from __future__ import annotations

from fractions import Fraction

import pytest

from tests.schedule import made
from tfpipe.schedule import Schedule, draw, gpipe, make, one_f_one_b
from tfpipe.simulate import StageTimes, simulate


def picture(text: str) -> str:
  return "\n".join(line.strip() for line in text.split())


def ticks(schedule: Schedule) -> str:
  part = Fraction(schedule.num_devices, schedule.num_stages)
  times = StageTimes.equal(schedule.num_stages, part, part, part)
  return draw.ticks(simulate(schedule, times))


def test_1f1b_looks_as_published() -> None:
  assert ticks(one_f_one_b.schedule(4, 8)) == picture("""
    FFFF......B0FB1FB2FB3FB4.B5.B6.B7|
    .FFF....B0FB1FB2FB3FB4FB5.B6.B7..|
    ..FF..B0FB1FB2FB3FB4FB5FB6.B7....|
    ...FB0FB1FB2FB3FB4FB5FB6FB7......|
  """)


def test_zb_h1_looks_as_published() -> None:
  assert ticks(make("zb_h1", 4, 8)) == picture("""
    FFFF...BWFBWFBWFBWFBWBWBWBW|
    .FFF..BFBWFBWFBWFBWFBWBWBWW|
    ..FF.BFBFBWFBWFBWFBWFBWBWWW|
    ...FBFBFBFBWFBWFBWFBWFBWWWW|
  """)


def test_zb_h2_looks_as_published() -> None:
  assert ticks(make("zb_h2", 4, 8)) == picture("""
    FFFFFFFBWFBWBWBWBWBWBWBW...|
    .FFFFFBFBFBWFBWBWBWBWBWWW..|
    ..FFFBFBFBFBFBWFBWBWBWWWWW.|
    ...FBFBFBFBFBFBFBWFBWWWWWWW|
  """)


def test_chimera_looks_as_published() -> None:
  assert ticks(make("chimera", 4, 4)) == picture("""
    FF.fb2fb3.B0..B1|
    .FfFf.b2B0b3B1..|
    .fFfF.B0b2B1b3..|
    ff.FB0FB1.b2..b3|
  """)


def test_interleaving_draws_every_other_stage_of_a_device_in_lower_case() -> None:
  assert ticks(make("interleaved", 4, 4)) == picture("""
    FFFFffff......b0.b1.b2.b3B0B1B2B3|
    .FFFFffff...b0.b1.b2.b3B0B1B2B3..|
    ..FFFFfff.b0fb1.b2.b3B0B1B2B3....|
    ...FFFFfb0fb1fb2fb3B0B1B2B3......|
  """)


def test_zb_v_turns_on_the_last_device() -> None:
  # In each device's 24 micro-batches of 1/2, from its first action on, is no wait.
  assert ticks(make("zb_v", 2, 4)) == picture("""
    FFFfbwfbwFBWfbwBWfbwBWBW.|
    .FfFfbwFBWfbwFBWfbwBbBWwW|
  """)


def test_gpipe_looks_like_its_figure_with_backwards_in_order() -> None:
  assert ticks(gpipe.schedule(4, 4)) == picture("""
    FFFF.........B0B1B2B3|
    .FFFF......B0B1B2B3..|
    ..FFFF...B0B1B2B3....|
    ...FFFFB0B1B2B3......|
  """)


def test_recomputation_fills_the_wait_for_the_first_gradient() -> None:
  assert ticks(gpipe.schedule(3, 2, remat=True)) == picture("""
    FFR......B0RB1|
    .FFR...B0RB1..|
    ..FFRB0RB1....|
  """)


def test_two_stages_on_a_device_take_turns() -> None:
  assert ticks(made.interleaved()) == picture("""
    FFffF.b0Fb1fB0fB1.b2.b3B2B3|
    .FFfb0fb1FB0FB1fb2fb3B2B3..|
  """)


@pytest.mark.parametrize("schedule", made.ALL, ids=lambda s: s.name)
def test_every_feature_can_be_drawn(schedule: Schedule) -> None:
  assert len(draw.lists(schedule).splitlines()) == schedule.num_devices
  rows = ticks(schedule).splitlines()
  assert len(rows) == schedule.num_devices
  assert len({len(row) for row in rows}) == 1
  # Forward 1 and backward 2 for each stage and micro-batch, the rest waiting.
  drawn = sum(len(row) - 1 - row.count(".") for row in rows)
  assert drawn == 3 * schedule.num_stages * schedule.num_micro_batches


def test_wide_actions_show_as_many_digits_as_fit() -> None:
  times = StageTimes.equal(1, forward=1, input_gradient=2, weight_gradient=2)
  rows = draw.ticks(simulate(gpipe.schedule(1, 13), times))
  assert rows.startswith("F" * 13 + "B0--B1--")
  assert rows.endswith("B11-B12-|")
  narrow = draw.ticks(simulate(gpipe.schedule(1, 13), StageTimes.equal(1)))
  assert narrow.endswith("B9B0B1B2|")


def test_a_tick_is_the_largest_in_which_all_times_are_whole() -> None:
  times = StageTimes.equal(2, forward=Fraction(1, 2), input_gradient=Fraction(3, 4))
  assert draw.ticks(simulate(gpipe.schedule(2, 1), times)) == picture("""
    F0.........B0-----|
    ..F0B0-----.......|
  """)


def test_times_without_a_common_tick_are_refused() -> None:
  times = StageTimes.equal(2, forward=0.1)
  with pytest.raises(ValueError, match=r"F .*: from 0 to 0.1 is not a whole number of"):
    draw.ticks(simulate(gpipe.schedule(2, 2), times))


def test_lists_show_kinds_and_micro_batches() -> None:
  assert draw.lists(one_f_one_b.schedule(2, 2, remat=True)) == (
    "0: F0 F1 R0 BW0 R1 BW1 U0\n1: F0 R0 BW0 F1 R1 BW1 U0"
  )


def test_lists_show_stages_pipes_and_sizes() -> None:
  assert draw.lists(made.chimera_two()) == (
    "0: F0@0 f1@1 bw1@1 BW0@0 U0@0 u0@1\n1: f1@0 F0@1 BW0@1 bw1@0 U0@1 u0@0"
  )
  assert "F2-3@0 " in draw.lists(made.chimera(4, 8, size=2))
