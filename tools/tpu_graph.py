"""Builds the step under a TPUStrategy whose topology is described, without a TPU.

That is the graph a TPU VM would compile: real exchanges, `strategy.run`, the number of
a core from its replica. Only its operations are looked at; none has a kernel here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfpipe.lazy import tf
from tfpipe.spmd.collectives import Alone, Tpu
from tfpipe.spmd.devices import Devices
from tfpipe.spmd.program import Program
from tfpipe.structure import static_shape
from tools import tpu_described
from tools.tpu_subject import Findings, Subject

COMPUTES = ("MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative")
_LAYER = re.compile(r"stage\d+/(\w+)/(forward|backward)/")


def check(subject: Subject) -> Findings:
  """Builds the step and finds out where each layer is."""
  program, steps = subject.program(), subject.params.train.steps_per_call
  found = Findings()
  halts = subject.params.task.learner.nonfinite == "stop"
  graph = build(program, steps, halts=halts)
  whole = graph.as_graph_def(add_shapes=True)
  functions = {f.signature.name: f for f in whole.library.function}
  found.lines.append(
    f"a TPUStrategy for {program.num_replicas} described cores built "
    f"{'the step' if steps == 1 else f'a call of {steps} steps'}: "
    f"{len(whole.node)} operations, {len(functions)} functions"
  )
  places = list(_walk(whole.node, functions, None))
  _check_layers(found, places, program)
  kinds = {node.op for f in functions.values() for node in f.node_def}
  kinds |= {node.op for node in whole.node}
  exchanges = {"CrossReplicaSum", *(["CollectivePermute"] * (program.num_replicas > 1))}
  found.expect(exchanges <= kinds, f"exchanges: {', '.join(sorted(exchanges))}")
  dynamic = [node.name for stage, node in places if _is_dynamic(stage, node)]
  found.expect(not dynamic, f"{len(dynamic)} dynamic shapes{some(dynamic)}")
  return found


def _walk(
  nodes: Sequence[Any], functions: Mapping[str, Any], stage: int | None
) -> Iterator[tuple[int | None, Any]]:
  """Lists all nodes, in functions too, with the number of the branch they are in."""
  for node in nodes:
    yield stage, node
    for key, value in node.attr.items():
      called = [value.func.name] if value.HasField("func") else []
      called += [each.name for each in value.list.func]
      for number, name in enumerate(called):
        # A layer's own branches belong to its stage.
        is_branch = node.op in ("Case", "StatelessCase") and key == "branches"
        below = number if is_branch and stage is None else stage
        yield from _walk(functions[name].node_def, functions, below)


def _check_layers(
  found: Findings, places: Sequence[tuple[int | None, Any]], program: Program
) -> None:
  """Notes whether each layer is in the branch of its stage, and nothing outside."""
  network = program.network
  stage_of = {
    layer.name: stage
    for stage, (start, end) in enumerate(network.ranges)
    for layer in network.layers[start:end]
  }
  seen: set[tuple[str, str]] = set()
  wrong = []
  for stage, node in places:
    named = _LAYER.search(node.name)
    if named and node.op == "PartitionedCall":
      seen.add((named[1], named[2]))
      if stage != stage_of[named[1]]:
        wrong.append(f"{node.name} is in the branch of stage {stage}")
  found.expect(not wrong, f"{len(wrong)} layers in another stage's branch{some(wrong)}")
  missing = [
    f"{name} {what}"
    for stage in network.stages
    for name, what in stage.parts()
    if (name, what) not in seen
  ]
  found.expect(
    not missing,
    f"{len(stage_of)} layers, forward and backward; {len(missing)} missing"
    + some(missing),
  )
  products = [(stage, node) for stage, node in places if node.op in COMPUTES]
  outside = [node.name for stage, node in products if stage is None]
  found.expect(
    not outside,
    f"{len(products)} products and convolutions, {len(outside)} outside of a stage"
    + some(outside),
  )


def _is_dynamic(stage: int | None, node: Any) -> bool:
  shapes = node.attr["_output_shapes"].list.shape
  # Within a stage, what batch norm keeps for cuDNN alone has no known rank.
  unknown = stage is None and any(s.unknown_rank for s in shapes)
  return unknown or any(d.size < 0 for s in shapes for d in s.dim)


def some(texts: Sequence[str]) -> str:
  """Gives the first few of what a line of findings has counted."""
  return f": {'; '.join(texts[:3])}" if texts else ""


def build(program: Program, steps: int, *, halts: bool) -> tf.Graph:
  """Builds a call of all cores within `strategy.run`, from variables to variables.

  Args:
    program: of a step.
    steps: of a call, and `halts`, see `Devices`.
    halts: likewise.
  """
  network, several = program.network, [steps] if steps > 1 else []
  _cut_layers(program)
  with tf.Graph().as_default() as graph:
    strategy = tpu_described.strategy(program.num_replicas)
    batch = {
      name: tf.compat.v1.placeholder(
        spec.dtype, [*several, *static_shape(spec)], name=f"batch/{name}"
      )
      for name, spec in network.batch.specs.items()
    }
    Devices(program, strategy, lambda _: Tpu(), steps, halts=halts).build(batch)
  return graph


def _cut_layers(program: Program) -> None:
  """Has the functions of layers made: they compute constants, which a graph cannot."""

  def step(given: Mapping[str, tf.Tensor], batch: Mapping[str, tf.Tensor]) -> dict:
    unknown = tf.zeros([8 * program.ticks.num_ticks + 16])
    return program.step(Alone(unknown), tf.constant(0), given, batch)

  tf.function(step, autograph=False).get_concrete_function(
    program.specs(), program.network.batch.specs
  )
