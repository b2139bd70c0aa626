from __future__ import annotations

import pytest

from tests.schedule import made
from tfpipe.schedule import gpipe, one_f_one_b, validate


def test_three_stages_alternate_after_their_warm_up() -> None:
  assert one_f_one_b.schedule(3, 4).actions == (
    made.actions("F0:0 F0:1 F0:2 BW0:0 F0:3 BW0:1 BW0:2 BW0:3 U0:0"),
    made.actions("F1:0 F1:1 BW1:0 F1:2 BW1:1 F1:3 BW1:2 BW1:3 U1:0"),
    made.actions("F2:0 BW2:0 F2:1 BW2:1 F2:2 BW2:2 F2:3 BW2:3 U2:0"),
  )


def test_fewer_micro_batches_than_stages_shorten_the_warm_up() -> None:
  assert one_f_one_b.schedule(3, 1).actions == (
    made.actions("F0:0 BW0:0 U0:0"),
    made.actions("F1:0 BW1:0 U1:0"),
    made.actions("F2:0 BW2:0 U2:0"),
  )


def test_recomputation_is_right_before_its_backward() -> None:
  assert one_f_one_b.schedule(2, 2, remat=True).actions == (
    made.actions("F0:0 F0:1 R0:0 BW0:0 R0:1 BW0:1 U0:0"),
    made.actions("F1:0 R1:0 BW1:0 F1:1 R1:1 BW1:1 U1:0"),
  )


@pytest.mark.parametrize("remat", [False, True])
def test_every_size_is_valid_and_does_the_work_of_gpipe(remat: bool) -> None:
  for num_stages in range(1, 7):
    for num_micro_batches in range(1, 13):
      schedule = one_f_one_b.schedule(num_stages, num_micro_batches, remat)
      validate(schedule)
      other = gpipe.schedule(num_stages, num_micro_batches, remat)
      assert list(map(sorted, schedule.actions)) == list(map(sorted, other.actions))


@pytest.mark.parametrize("remat", [False, True])
def test_weight_gradients_are_summed_in_the_order_of_gpipe(remat: bool) -> None:
  for num_stages in range(1, 7):
    for num_micro_batches in range(1, 13):
      for of_this, of_gpipe in zip(
        one_f_one_b.schedule(num_stages, num_micro_batches, remat).actions,
        gpipe.schedule(num_stages, num_micro_batches, remat).actions,
        strict=True,
      ):
        for kind in ("F", "BW"):
          assert [a for a in of_this if a.kind == kind] == [
            a for a in of_gpipe if a.kind == kind
          ]


def test_sizes_below_one_are_refused() -> None:
  with pytest.raises(ValueError, match="1f1b: num_devices is -1"):
    one_f_one_b.schedule(-1, 4)
  with pytest.raises(ValueError, match=r"num_micro_batches is 2\.0: expected a whole"):
    one_f_one_b.schedule(4, 2.0)  # type: ignore[arg-type]
