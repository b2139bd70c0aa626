from __future__ import annotations

import pytest

from tests.schedule import made
from tfpipe.schedule import gpipe, validate


def test_two_stages_run_all_forwards_then_all_backwards() -> None:
  assert gpipe.schedule(2, 3).actions == (
    made.actions("F0:0 F0:1 F0:2 BW0:0 BW0:1 BW0:2 U0:0"),
    made.actions("F1:0 F1:1 F1:2 BW1:0 BW1:1 BW1:2 U1:0"),
  )


def test_recomputation_is_right_before_its_backward() -> None:
  assert gpipe.schedule(1, 2, remat=True).actions == (
    made.actions("F0:0 F0:1 R0:0 BW0:0 R0:1 BW0:1 U0:0"),
  )


def test_the_record_says_what_it_promises() -> None:
  schedule = gpipe.schedule(3, 5)
  assert (schedule.name, schedule.num_stages, schedule.num_micro_batches) == (
    "gpipe",
    3,
    5,
  )
  assert schedule.placement == ((0, 1, 2),)
  assert schedule.num_devices == 3
  assert schedule.exact
  assert schedule.num_versions == 1
  assert gpipe.schedule(3, 5, remat=True).name == "gpipe+R"


@pytest.mark.parametrize("remat", [False, True])
def test_every_size_is_valid(remat: bool) -> None:
  for num_stages in range(1, 7):
    for num_micro_batches in range(1, 13):
      validate(gpipe.schedule(num_stages, num_micro_batches, remat))


def test_sizes_below_one_are_refused() -> None:
  with pytest.raises(
    ValueError, match="gpipe: num_devices is 0: expected a whole number"
  ):
    gpipe.schedule(0, 4)
  with pytest.raises(ValueError, match="num_micro_batches is -2"):
    gpipe.schedule(4, -2)
