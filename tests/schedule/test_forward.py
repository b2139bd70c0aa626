from __future__ import annotations

from tests.schedule import made
from tfpipe.schedule import forward, make
from tfpipe.simulate import StageTimes, simulate
from tfpipe.timeline import Secs


def test_one_stage_a_device_takes_the_micro_batches_in_turn() -> None:
  schedule = forward.schedule(2, 3, ((0, 1),))
  assert schedule.actions == (
    made.actions("F0:0 F0:1 F0:2"),
    made.actions("F1:0 F1:1 F1:2"),
  )
  assert schedule.num_updates == 0


def test_no_device_waits_for_its_own_results() -> None:
  schedule = forward.schedule(4, 5, make("interleaved", 2, 5).placement)
  assert schedule.actions[0] == made.actions(
    "F0:0 F0:1 F2:0 F2:1 F0:2 F0:3 F2:2 F2:3 F0:4 F2:4"
  )
  # One stage after the other until the last device starts, then no wait.
  for k, m in ((2, 2), (3, 6), (4, 8)):
    assert makespan(make("interleaved", k, m).placement, m) == 2 * m + k - 1
  # A V takes one in every two ticks, and the last goes through 2k stages.
  for k, m in ((2, 3), (3, 6), (4, 9)):
    assert makespan(make("zb_v", k, m).placement, m) == 2 * m + 2 * k - 2


def makespan(placement: tuple[tuple[int, ...], ...], m: int) -> Secs:
  num_stages = len(placement[0])
  schedule = forward.schedule(num_stages, m, placement)
  return simulate(schedule, StageTimes.equal(num_stages)).makespan


def test_two_pipes_have_one_for_evaluation() -> None:
  placement = make("chimera", 2, 2).placement
  assert forward.schedule(2, 3, placement).placement == placement[:1]
