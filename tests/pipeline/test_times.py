"""A timed step says when each action ran, and computes the same."""

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS
from tfpipe import schedule
from tfpipe.pipeline.clock import Clock

CASES = [
  ("gpipe", 2, "cell", {}),
  ("1f1b", 3, "none", {}),
  ("zb_v", 2, "none", {}),
  ("chimera_doubling", 2, "layer", {}),
]


def _training(tf, case, *, timed):
  name, num_partitions, remat, options = case
  return harness.start(
    tf,
    NETWORKS["dropout"],
    name=name,
    num_partitions=num_partitions,
    num_micro_batches=4,
    remat=remat,
    timed=timed,
    **options,
  )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_actions_run_one_after_the_other_and_behind_what_they_need(tf, case):
  name, num_partitions, remat, options = case
  made = schedule.make(name, num_partitions, 4, remat == "cell", **options)
  training = _training(tf, case, timed=True)
  outputs = training.step(NETWORKS["dropout"].batches(1)[0])
  timed = training.pipeline.timed_actions()
  spans = dict(zip(timed, outputs["times"], strict=True))
  assert set(timed) == {a for acts in made.actions for a in acts if a.kind != "U"}
  for actions in made.actions:
    free = 0.0
    for action in actions:
      if action.kind != "U":
        assert free <= spans[action][0] <= spans[action][1]
        free = spans[action][1]
  for action, (start, _) in spans.items():
    for needed in schedule.dependencies(made, action):
      # A gradient is sent on while those of the weights are still being added up.
      assert spans[needed][0] <= start
  assert outputs["ends"].shape == (made.num_devices,)
  assert outputs["ends"].min() >= outputs["times"].max()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_timed_step_gives_the_same_bits(tf, case):
  states = []
  for timed in (False, True):
    training = _training(tf, case, timed=timed)
    for batch in NETWORKS["dropout"].batches(2):
      training.step(batch)
    states.append(training.state())
  assert not harness.differences(*states)


def test_the_end_of_a_device_is_behind_its_own_changes_and_no_others(tf):
  graph = _training(tf, CASES[0], timed=True).function.graph
  (ends,) = [t for t in graph.outputs if t.shape == [2] and t.dtype == tf.float64]
  stack = ends.op
  while stack.type == "Identity":
    stack = stack.inputs[0].op
  clocks = [tensor.op.inputs[0].op for tensor in stack.inputs]
  for device, clock in enumerate(clocks):
    (reading,) = [tensor.op.inputs[0].op for tensor in clock.inputs]
    behind = {op.device[-1] for op in reading.control_inputs if op.op_def.is_stateful}
    calls = [
      op for op in reading.control_inputs if "StatefulPartitionedCall" in op.type
    ]
    assert behind == {str(device)}
    assert len(calls) == 3  # halves, the loss's L2 term, the update


def test_times_are_seconds_of_the_step_itself(tf):
  training = _training(tf, CASES[0], timed=True)
  batch = NETWORKS["dropout"].batches(1)[0]
  first, second = training.step(batch), training.step(batch)
  assert first["ends"].max() <= second["times"].min()
  assert second["times"].dtype == np.float64


@pytest.mark.parametrize(
  ("device", "clock"),
  [("/device:GPU:0", "/device:CPU:0"), ("/device:CPU:2", "/device:CPU:2")],
)
def test_the_clock_of_the_host_waits_for_a_copy_from_the_device(tf, device, clock):
  with tf.Graph().as_default() as graph:
    with tf.device(device):
      done = tf.identity(tf.zeros([]), name="done")
    with tf.control_dependencies([done]):
      Clock().read(device)
  (call,) = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
  (after,) = [tensor.op for tensor in call.inputs]
  assert (call.device, after.device) == (clock, device)
  assert done.op in after.inputs[0].op.control_inputs
