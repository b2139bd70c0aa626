"""What hangs is named and ended; what does not hang is left alone."""

import threading

import numpy as np
import pytest

from tests.program import training
from tests.program.training import IMAGE
from tfpipe import schedule
from tfpipe.program import watchdog
from tfpipe.program.places import Places, unfinished
from tfpipe.program.watchdog import Watchdog
from tfpipe.schedule import forward
from tfpipe.schedule.action import Action

SMALL = "tools.fault_cases.Small"
# Long enough for whatever a busy machine does; nothing waits so long.
LONG_SECS = 60


def test_what_takes_too_long_is_ended_with_a_message():
  ended, messages = threading.Event(), []

  def end(message):
    messages.append(message)
    ended.set()

  with Watchdog(0.25, end) as dog:
    with dog.limit("step 4 runs"):
      assert ended.wait(LONG_SECS)
    ended.clear()
    with dog.limit("step 5 runs", lambda: "device 3"):
      assert ended.wait(LONG_SECS)
  assert messages == [
    "step 4 runs for more than train.step_timeout_secs=0.25",
    "step 5 runs for more than train.step_timeout_secs=0.25: device 3",
  ]


def test_a_time_that_no_clock_can_wait_for_is_a_limit_as_well():
  with Watchdog(1e300) as dog, dog.limit("x"):
    with dog._changed:  # has been waited for, if it can be
      pass
    dog._thread.join(0.1)
    assert dog._thread.is_alive()


def test_a_place_that_hangs_as_well_is_not_waited_for(monkeypatch):
  monkeypatch.setattr(watchdog, "_PATIENCE_SECS", 0.01)
  ended, messages, never = threading.Event(), [], threading.Event()

  def end(message):
    messages.append(message)
    ended.set()

  with Watchdog(0.01, end) as dog, dog.limit("x", lambda: str(never.wait())):
    assert ended.wait(LONG_SECS)
  never.set()
  assert messages[0].endswith(": nobody answers where")


def test_what_ends_in_time_is_left_alone():
  messages = []
  with Watchdog(LONG_SECS, messages.append) as dog:
    for _ in range(3):
      with dog.limit("a step"):
        pass
  assert not messages
  assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_an_error_ends_the_limit():
  messages = []
  with Watchdog(LONG_SECS, messages.append) as dog:
    with pytest.raises(ZeroDivisionError), dog.limit("a step"):
      raise ZeroDivisionError
    assert dog._deadline is None


def test_without_a_limit_there_is_no_thread():
  with Watchdog(0) as dog, dog.limit("a step"):
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


class Named(Places):
  """Places without a run."""

  def __init__(self):
    pass

  def layers(self, stage):
    return f"layers of {stage}"


# 1F1B with two micro-batches: F0 F1 BW0 BW1, and F0 BW0 F1 BW1.
@pytest.mark.parametrize(
  ("counts", "unfinished_actions", "end"),
  [
    ([0, 0], [(0, "F", 0)], "; another device waits"),
    ([1, 0], [(0, "F", 1), (1, "F", 0)], ""),
    ([2, 1], [(1, "BW", 0)], "; another device waits"),
    ([2, 2], [(0, "BW", 0), (1, "F", 1)], ""),
    ([2, 4], [(0, "BW", 0)], ""),
    ([3, 4], [(0, "BW", 1)], ""),
  ],
)
@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_actions_that_others_wait_for_are_named(
  counts, unfinished_actions, end, num_steps
):
  made = schedule.make("1f1b", 2, 2, False)
  done = [4 * (num_steps - 1) + count for count in counts]
  texts = [
    f"device {stage} does not end {Action(kind, stage, m)}: layers of {stage}"
    for stage, kind, m in unfinished_actions
  ]
  assert unfinished(made, Named(), done, num_steps) == "; ".join(texts) + end


def test_a_step_without_an_unfinished_action_hangs_in_its_update():
  made = schedule.make("1f1b", 3, 4, True)
  counts = [sum(a.kind != "U" for a in own) for own in made.actions]
  expected = "all devices have done their actions; the update does not end"
  assert unfinished(made, Named(), counts, 1) == expected


def test_an_evaluation_hangs_in_a_forward_or_behind_all_of_them():
  made = forward.schedule(2, 2, ((0, 1),))
  assert unfinished(made, Named(), [3, 2], 2) == (
    f"device 0 does not end {Action('F', 0, 1)}: layers of 0; "
    f"device 1 does not end {Action('F', 1, 0)}: layers of 1"
  )
  expected = "all devices have done their actions; adding up metrics does not end"
  assert unfinished(made, Named(), [4, 4], 2) == expected


@pytest.mark.parametrize(
  "layout",
  [
    ("pipeline.num_partitions=1",),
    ("pipeline.num_partitions=3", "pipeline.schedule=zb_h1", "pipeline.remat=none"),
    ("pipeline.schedule=zb_v", "pipeline.remat=cell"),
  ],
)
def test_each_device_counts_its_actions_and_changes_no_bit(tf, tmp_path, layout):
  training.train(tmp_path / "plain", IMAGE, *layout)
  run = training.train(
    tmp_path / "watched", IMAGE, "train.step_timeout_secs=1000", *layout
  )
  assert run.marks is not None
  actions = run.plan.schedule.actions
  expected = [6 * sum(a.kind != "U" for a in own) for own in actions]
  assert run.marks.read() == expected
  plain, watched = (training.newest(tmp_path / name) for name in ("plain", "watched"))
  assert training.differences(plain, watched) == []


def test_a_hung_layer_can_be_looked_at_from_another_thread(tf):
  run = training.make_run(
    SMALL, "train.step_timeout_secs=1000", "pipeline.lengths=(2, 7)"
  )
  assert run.marks is not None
  step = run.train_function()
  batch = next(iter(run.input.dataset()))
  found = []
  thread = threading.Thread(target=lambda: found.append(run.marks.read()))
  step(batch)
  thread.start()
  thread.join(LONG_SECS)
  assert np.array(found).tolist() == [[12, 12]]  # F, R and BW of four micro-batches
