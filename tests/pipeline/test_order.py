"""The graph holds each device to its list, and nothing else waits: stages overlap."""

import re

import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS
from tfpipe import schedule
from tfpipe.schedule import dependencies
from tfpipe.schedule.action import Action

KINDS = {"forward": "F", "recompute": "R", "backward": "BW"}


def action_of(op):
  """Reads from an op's name which action it belongs to; None if to no one."""
  match = re.match(r"stage(\d+)/micro(\d+)/(\w+)/", op.name)
  if not match:
    return None
  return Action(KINDS[match.group(3)], int(match.group(1)), int(match.group(2)))


def waits_of(ops, action):
  """Lists the other actions whose ops the ops of an action wait for."""
  found = set()
  for op in ops:
    for source in [*op.control_inputs, *[tensor.op for tensor in op.inputs]]:
      other = action_of(source)
      if other not in (None, action):
        found.add(other)
  return found


def starts_after(op, previous, action):
  """Whether an op waits for an action, perhaps through ops of its own action."""
  seen, waiting = set(), [op]
  while waiting:
    for source in [
      *(current := waiting.pop()).control_inputs,
      *[tensor.op for tensor in current.inputs],
    ]:
      if action_of(source) == previous:
        return True
      if action_of(source) == action and source.name not in seen:
        seen.add(source.name)
        waiting.append(source)
  return False


@pytest.mark.parametrize(
  ("name", "remat", "network"),
  [
    ("gpipe", "none", "dropout"),
    ("gpipe", "cell", "tokens"),
    ("1f1b", "cell", "dropout"),
    ("1f1b", "layer", "batch_norm"),
  ],
)
def test_actions_wait_for_their_devices_last_one_and_their_inputs_only(
  tf, name, remat, network
):
  training = harness.start(
    tf,
    NETWORKS[network],
    num_partitions=3,
    num_micro_batches=4,
    name=name,
    remat=remat,
  )
  planned = schedule.make(name, 3, 4, remat == "cell")
  ops = {}
  for op in training.function.graph.get_operations():
    ops.setdefault(action_of(op), []).append(op)
  for actions in planned.actions:
    steps = [action for action in actions if action.kind != "U"]
    for place, action in enumerate(steps):
      allowed = {*steps[:place], *dependencies(planned, action)}
      assert waits_of(ops[action], action) <= allowed, action
      calls = [op for op in ops[action] if "PartitionedCall" in op.type]
      assert calls
      for op in calls if place else []:
        assert starts_after(op, steps[place - 1], action), op.name
  assert set(ops) - {None} == {
    action for actions in planned.actions for action in actions if action.kind != "U"
  }


def test_no_op_of_a_step_is_chained_for_its_side_effects_but_reads_and_updates(tf):
  training = harness.start(
    tf, NETWORKS["dropout"], num_partitions=3, num_micro_batches=2, name="1f1b"
  )
  stateful = {
    op.type
    for op in training.function.graph.get_operations()
    if action_of(op) is not None and op.op_def.is_stateful
  }
  assert not stateful
