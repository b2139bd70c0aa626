"""The graph holds each device to its list, and nothing else waits: stages overlap."""

import re

import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import NETWORKS, toy_network
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


def implied(planned):
  """Gives for each action all that a schedule puts before it."""
  last, before = {}, {}
  for action in schedule.order(planned):
    device = planned.device(action)
    direct = [*dependencies(planned, action), *last.get(device, [])]
    before[action] = {*direct}.union(*[before[other] for other in direct])
    last[device] = [action]
  return before


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


def is_used(op):
  """Whether anything takes what an op gives; if not, it never runs."""
  return any(tensor.consumers() for tensor in op.outputs)


def check(tf, network, name, remat):
  """Compares the graph of a step with its schedule; gives actions that do nothing."""
  training = harness.start(
    tf, network, num_partitions=3, num_micro_batches=4, name=name, remat=remat
  )
  planned = schedule.make(name, 3, 4, remat == "cell")
  ops = {}
  for op in training.function.graph.get_operations():
    ops.setdefault(action_of(op), []).append(op)
  before, empty = implied(planned), set()
  for actions in planned.actions:
    previous = None
    for action in actions[:-1]:
      calls = [op for op in ops[action] if "PartitionedCall" in op.type and is_used(op)]
      assert waits_of(ops[action], action) <= before[action], action
      for op in calls if previous else []:
        assert starts_after(op, previous, action), op.name
      if calls:
        previous = action
      else:
        empty.add(action)
  return empty


@pytest.mark.parametrize(
  ("name", "remat", "network"),
  [
    ("gpipe", "none", "dropout"),
    ("gpipe", "cell", "tokens"),
    ("1f1b", "cell", "dropout"),
    ("1f1b", "layer", "batch_norm"),
  ],
)
def test_actions_wait_for_the_last_one_of_their_device_and_nothing_else(
  tf, name, remat, network
):
  assert not check(tf, NETWORKS[network], name, remat)


def test_forwards_of_a_frozen_stage_keep_their_order(tf):
  frozen = toy.Dense.Params().Set(trainable=False)
  network = toy_network(frozen, toy.Dense.Params(), toy.Regression.Params())
  empty = check(tf, network, "1f1b", "none")
  assert empty == {Action("BW", 0, micro_batch) for micro_batch in range(4)}


def test_no_action_has_an_op_with_side_effects_that_would_be_chained(tf):
  training = harness.start(
    tf, NETWORKS["dropout"], num_partitions=3, num_micro_batches=2, name="1f1b"
  )
  stateful = {
    op.type
    for op in training.function.graph.get_operations()
    if action_of(op) is not None and op.op_def.is_stateful
  }
  assert not stateful
