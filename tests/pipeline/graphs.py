"""What TensorFlow made of a step: the optimized graph of each device."""

from __future__ import annotations

import functools
import re
from collections import Counter

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS

STAGES = 3
MICRO_BATCHES = 2

_TRANSPORT = {"_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval"}


@functools.cache
def network_nodes(tf, network: str, remat: str) -> dict[str, list]:
  """As `nodes_by_device`, of a network whose stages are on all CPUs but the first."""
  training = harness.start(
    tf,
    NETWORKS[network],
    num_partitions=STAGES,
    num_micro_batches=MICRO_BATCHES,
    remat=remat,
    first_device=1,
  )
  return nodes_by_device(tf, training.function, NETWORKS[network].batches(1)[0])


def nodes_by_device(tf, function, batch: harness.Arrays) -> dict[str, list]:
  """Runs a step once; gives the nodes on each device, after all optimization.

  A call that is left then is replaced by what it calls, which has no device of its own.
  """
  metadata = _run(tf, function, batch)
  functions = library(function)
  nodes: dict[str, list] = {}
  for node in (node for graph in metadata.partition_graphs for node in graph.node):
    if node.op not in _TRANSPORT:
      device = "/device:" + node.device.split("device:")[1]
      nodes.setdefault(device, []).extend(inside(node, functions))
  return nodes


def library(function) -> dict:
  """Gives the functions that a traced function calls, by name."""
  functions = function.graph.as_graph_def().library.function
  return {f.signature.name: f for f in functions}


def inside(node, functions) -> list:
  """Replaces a call by the nodes of what it calls, and so on; or gives the node."""
  names = [a.func.name for a in node.attr.values() if a.HasField("func")]
  # Where some outputs are not read, a copy without them is called.
  called = [functions[name.split("_specialized_for_")[0]] for name in names]
  if not called:
    return [node]
  found = []
  for part in (n for function in called for n in function.node_def):
    assert not part.device
    copy = type(node)()
    copy.CopyFrom(part)
    copy.name = f"{node.name}/{part.name}"
    found += inside(copy, functions)
  return found


def all_nodes(tf, function, batch: harness.Arrays) -> list:
  """Runs a step once; gives the nodes of all devices, with those that send tensors."""
  graphs = _run(tf, function, batch).partition_graphs
  return [node for graph in graphs for node in graph.node]


def _run(tf, function, batch: harness.Arrays):
  """Runs a step once; gives the graphs that TensorFlow made of it."""
  from tensorflow.python.eager import context

  tensors = {name: tf.constant(array) for name, array in batch.items()}
  context.context().executor.wait()
  context.enable_graph_collection()
  try:
    function(tensors)
    return context.export_run_metadata()
  finally:
    context.disable_graph_collection()


def kind(node) -> str:
  """Gives a node's op; a product is MatMul in any library."""
  return re.sub(r"^_(Mkl)?(Native)?(Fused(?=MatMul|Conv))?", "", node.op)


def count(nodes) -> Counter:
  """Counts nodes by op, as `kind` gives it."""
  return Counter(kind(node) for node in nodes)


def stage_of(node) -> int | None:
  """Reads the stage from a node's name."""
  match = re.match(r"(?:metrics/)?stage(\d+)/", node.name)
  return int(match.group(1)) if match else None
