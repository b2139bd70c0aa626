from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tests.schedule import made
from tfpipe.schedule import Schedule, gpipe, in_flight, one_f_one_b, validate


def test_gpipe_keeps_all_forwards_and_1f1b_one_for_each_stage_behind() -> None:
  for k in range(1, 7):
    for m in range(1, 13):
      every = (m,) * k
      fewer = tuple(min(m, k - d) for d in range(k))
      one = (1,) * k
      assert in_flight(gpipe.schedule(k, m)) == (every, every)
      assert in_flight(gpipe.schedule(k, m, remat=True)) == (every, one)
      assert in_flight(one_f_one_b.schedule(k, m)) == (fewer, fewer)
      assert in_flight(one_f_one_b.schedule(k, m, remat=True)) == (fewer, one)


@pytest.mark.parametrize(
  ("schedule", "without_backward", "kept"),
  [
    (made.interleaved(), (Fraction(5, 2), Fraction(3, 2)), None),
    (made.chimera_two(), (2, 2), None),
    (made.chimera(4, 4), (3, 4, 4, 3), None),
    (made.chimera(4, 8), (3, 4, 4, 3), None),
    (made.chimera(4, 8, size=2), (7, 8, 8, 7), None),
    (made.zero_bubble_two(), (2, 1), (2, 2)),
    (made.zero_bubble_h1(4, 8), (4, 3, 2, 1), (4, 4, 4, 4)),
    (made.zero_bubble_h1(8, 32), (8, 7, 6, 5, 4, 3, 2, 1), (8,) * 8),
    (made.stream(4, 9), (4, 3, 2, 1), None),
  ],
)
def test_memory_in_flight_is_what_is_published(
  schedule: Schedule, without_backward: tuple[int], kept: tuple[int] | None
) -> None:
  assert in_flight(schedule) == (without_backward, kept or without_backward)


def test_a_micro_batch_that_is_not_recomputed_stays_whole() -> None:
  # Recomputation of all but the last micro-batch.
  lists = "F0:0 F0:1 R0:0 BW0:0 BW0:1 U0:0", "F1:0 R1:0 BW1:0 F1:1 BW1:1 U1:0"
  schedule = dataclasses.replace(
    gpipe.schedule(2, 2), actions=tuple(map(made.actions, lists))
  )
  validate(schedule)
  assert in_flight(schedule) == ((2, 1), (2, 1))
