"""Each device keeps to its list, and waits for nothing else: stages overlap."""

import itertools
import re

import pytest

from tests.pipeline import graphs, harness, toy
from tests.pipeline.networks import NETWORKS, toy_network
from tfpipe import schedule
from tfpipe.schedule import dependencies
from tfpipe.schedule.action import Action

STAGES, MICRO_BATCHES = 3, 4

KINDS = {
  "forward": "F",
  "recompute": "R",
  "backward": "BW",
  "input_gradient": "B",
  "weight_gradient": "W",
}

CASES = [
  ("gpipe", "none", "dropout"),
  ("gpipe", "cell", "tokens"),
  ("1f1b", "cell", "dropout"),
  ("1f1b", "layer", "batch_norm"),
  ("zb_h1", "none", "dropout"),
  ("zb_h2", "cell", "batch_norm"),
]


def action_of(name):
  """Reads from the name of an op which action it belongs to; None if to no one."""
  match = re.match(r"stage(\d+)/micro(\d+)/(\w+)/", name)
  if not match:
    return None
  return Action(KINDS[match.group(3)], int(match.group(1)), int(match.group(2)))


def start(tf, network, name, remat, **how):
  """Traces a step; gives it with the schedule it is built from."""
  training = harness.start(
    tf,
    network,
    num_partitions=STAGES,
    num_micro_batches=MICRO_BATCHES,
    name=name,
    remat=remat,
    **how,
  )
  return training, schedule.make(name, STAGES, MICRO_BATCHES, remat == "cell")


def implied(planned):
  """Gives for each action all that a schedule puts before it."""
  last, before = {}, {}
  for action in schedule.order(planned):
    device = planned.device(action)
    direct = [*dependencies(planned, action), *last.get(device, [])]
    before[action] = {*direct}.union(*[before[other] for other in direct])
    last[device] = [action]
  return before


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("name", "remat", "network"), CASES)
def test_no_action_waits_for_what_the_schedule_does_not_put_before_it(
  tf, name, remat, network, timed
):
  training, planned = start(tf, NETWORKS[network], name, remat, timed=timed)
  before, found = implied(planned), set()
  for op in training.function.graph.get_operations():
    action = action_of(op.name)
    sources = [*op.control_inputs, *[tensor.op for tensor in op.inputs]]
    waits = {action_of(source.name) for source in sources} - {None, action}
    assert action is None or waits <= before[action], op.name
    found.add(action)
  assert found - {None} == {action for action in before if action.kind != "U"}


def users_by_name(nodes):
  """Gives for each node the names of those that wait for it, on any device."""
  users = {}
  sent = {}
  for node in nodes:
    if node.op == "_Send":
      sent[node.attr["tensor_name"].s] = node.name
  for node in nodes:
    sources = [source.lstrip("^").split(":")[0] for source in node.input]
    if node.op == "_Recv":
      sources.append(sent[node.attr["tensor_name"].s])
    for source in sources:
      users.setdefault(source, []).append(node.name)
  return users


def descendants(users, roots):
  """Gives the names of all nodes that wait for one of the roots."""
  found, waiting = set(), list(roots)
  while waiting:
    for name in users.get(waiting.pop(), []):
      if name not in found:
        found.add(name)
        waiting.append(name)
  return found


def check_optimized(tf, network, name, remat):
  """Checks that each device does what is in its list, once, in that order."""
  training, planned = start(tf, network, name, remat)
  nodes = graphs.all_nodes(tf, training.function, network.batches(1)[0])
  calls = [n.name for n in nodes if n.op == "PartitionedCall" and action_of(n.name)]
  by_action = {action_of(name): name for name in calls}
  assert len(calls) == len(by_action)
  users = users_by_name(nodes)
  for *actions, update in planned.actions:
    assert update.kind == "U"
    for before, action in itertools.pairwise(actions):
      assert by_action[action] in descendants(users, [by_action[before]])


@pytest.mark.parametrize(("name", "remat", "network"), CASES)
def test_the_optimized_graph_keeps_each_device_to_its_list(tf, name, remat, network):
  check_optimized(tf, NETWORKS[network], name, remat)


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize(
  ("name", "remat", "network", "lengths"),
  [("1f1b", "cell", "tokens", (2, 1, 1)), ("zb_h1", "none", "two_inputs", (4, 1, 1))],
)
def test_a_cell_runs_its_layers_one_after_the_other(
  tf, name, remat, network, lengths, serial
):
  how = {"serial": serial, "lengths": lengths}
  training, _ = start(tf, NETWORKS[network], name, remat, **how)
  functions = graphs.library(training.function)
  longest = 0
  for op in training.function.graph.get_operations():
    if action_of(op.name) is None or op.type != "PartitionedCall":
      continue
    nodes = functions[op.get_attr("f").name].node_def
    names = [node.name for node in nodes if node.op == "PartitionedCall"]
    users = users_by_name(nodes)
    behind = {name: descendants(users, [name]) & set(names) for name in names}
    numbers = sorted(len(later) for later in behind.values())
    assert numbers == list(range(len(names)))
    longest = max(longest, len(names))
    # And so do the ops of a layer.
    executor = b"SINGLE_THREADED_EXECUTOR" if serial else b""
    for node in nodes:
      if node.op == "PartitionedCall":
        assert node.attr["executor_type"].s == executor
  assert longest > 1


@pytest.mark.parametrize(
  ("network", "num_partitions", "name", "remat"),
  [
    ("tokens", 2, "gpipe", "none"),
    ("convolutions", 3, "1f1b", "cell"),
    ("two_inputs", 2, "zb_v", "layer"),
    ("dropout", 4, "zb_h1", "cell"),
    ("transformer", 1, "gpipe", "layer"),
  ],
)
def test_serial_cells_give_the_same_bits(tf, network, num_partitions, name, remat):
  def train(**how):
    return harness.train(tf, NETWORKS[network], 2, num_micro_batches=4, **how)[0]

  plain = train()
  how = {"num_partitions": num_partitions, "name": name, "remat": remat}
  assert not harness.differences(train(serial=True, **how), plain)


def test_forwards_of_a_frozen_stage_keep_their_order(tf):
  frozen = toy.Dense.Params().Set(trainable=False)
  network = toy_network(frozen, toy.Dense.Params(), toy.Regression.Params())
  check_optimized(tf, network, "1f1b", "none")


def test_no_action_has_an_op_with_side_effects_that_would_be_chained(tf):
  training, _ = start(tf, NETWORKS["dropout"], "1f1b", "cell")
  stateful = {
    op.type
    for op in training.function.graph.get_operations()
    if action_of(op.name) is not None and op.op_def.is_stateful
  }
  assert not stateful


@pytest.mark.parametrize(
  ("network", "name"),
  [("batch_norm", "1f1b"), ("tokens", "chimera"), ("dropout", "zb_v")],
)
def test_weights_change_after_all_that_reads_them(tf, network, name):
  # TensorFlow orders no calls by variables that they are handed packed.
  options = {"num_partitions": 2} if name == "chimera" else {}
  training = harness.start(
    tf,
    NETWORKS[network],
    name=name,
    num_micro_batches=MICRO_BATCHES,
    **{"num_partitions": STAGES, **options},
  )
  graph = training.function.graph
  functions = graphs.library(training.function)
  held = {inner.op.name for _, inner in graph.captures if inner.dtype == tf.variant}
  readers = {
    op.name: {node.op for node in functions[op.get_attr("f").name].node_def}
    for op in graph.get_operations()
    if any(tensor.op.name in held for tensor in op.inputs)
  }
  changes = {name for name, ops in readers.items() if "If" in ops}
  assert changes
  users = users_by_name(graph.as_graph_def().node)
  early = readers.keys() - changes
  # The forwards' reads, the L2 terms of gradients, and of the loss.
  assert len(early) >= 3 * len(changes)
  for reader in early:
    assert changes <= descendants(users, [reader]), reader
