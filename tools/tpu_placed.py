"""Builds the step of the `devices` back end on TPU cores, and looks where it all is.

Two forms, unverified: neither has run on a TPU.

  devices          each action calls a compiled function on /device:TPU:k
  replicated_core  the cores are logical ones of one replica of a TPUStrategy,
                   /device:TPU_REPLICATED_CORE:k, and all of it is compiled as a whole:
                   for StreamExecutor runtimes of v2 to v4; a newer libtpu answers
                   UNIMPLEMENTED

The builder is that of every other device. The graph ends with the sums of gradients:
the update of a weight is where the weight is, whatever its device.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfpipe import plan as plan_lib
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline import mixed_precision
from tfpipe.pipeline.builder import StepBuilder, scope
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.cell import make_cells, make_gradients
from tfpipe.pipeline.clock import HOST
from tfpipe.pipeline.pipeline import declared_weights, part_specs, seed_keys
from tfpipe.plan import Plan
from tfpipe.structure import static_shape
from tools import hlo_text, tpu_described, tpu_hlo
from tools.tpu_graph import COMPUTES, some
from tools.tpu_subject import Findings, tensor_specs

_CORE = {"devices": "TPU", "replicated_core": "TPU_REPLICATED_CORE"}
_PRODUCTS = (
  *COMPUTES,
  *(f"{op}Backprop{of}" for op in COMPUTES for of in ("Input", "Filter")),
)
_CORE_OF = re.compile(r"sharding=\{maximal device=(\d+)\}")
_ACTION = re.compile(r"stage\d+/micro\d+/\w+/")
# What may be anywhere: the batch, and numbers that are known.
_ANYWHERE = (
  *("Placeholder", "Const", "Identity", "Unpack", "NoOp"),
  "TPUReplicateMetadata",
)


@dataclasses.dataclass(frozen=True)
class Placed:
  """An experiment, planned for TPU cores; nothing of it is on a device.

  Attributes:
    params: of the run.
    plan: made from them.
    form: `devices` or `replicated_core`.
  """

  params: Params
  plan: Plan
  form: str

  def cores(self) -> list[str]:
    """Names the core of each device of the schedule."""
    kind = _CORE[self.form]
    return [f"/device:{kind}:{k}" for k in range(self.plan.schedule.num_devices)]

  def title(self) -> str:
    """Says in a line what is looked at."""
    pipe = self.params.pipeline
    return (
      f"{self.params.name}: K={pipe.num_partitions}, M={pipe.num_micro_batches}, "
      f"{self.plan.schedule.name}, form {self.form}: unverified, not run on a TPU"
    )


def make(params: Params, form: str) -> Placed:
  """Plans a run.

  Raises:
    ValueError, TypeError, AttributeError, LookupError, OSError: a field is not allowed.
  """
  remat = params.pipeline.remat
  if form == "replicated_core" and remat == "layer":
    raise ValueError(
      f"pipeline.remat={remat!r}: must be 'none' or 'cell' with --form={form}, where a "
      "compiler finds that a layer has been computed before"
    )
  params.pipeline.backend = "devices"
  params.pipeline.xla = form == "devices"
  return Placed(params, plan_lib.make(params), form)


def check(subject: Placed, stage: str) -> Findings:
  """Looks at the step; `stage` is `graph`, or `hlo` for a form compiled as a whole."""
  return _check_graph(subject) if stage == "graph" else _check_hlo(subject)


def _check_graph(subject: Placed) -> Findings:
  """Builds the step and finds out on which core everything is."""
  found = Findings()
  whole = build(subject).as_graph_def()
  functions = {f.signature.name: f for f in whole.library.function}
  found.lines.append(
    f"the step for {', '.join(subject.cores())}: {len(whole.node)} operations, "
    f"{len(functions)} functions"
  )
  expected = _expected(subject)
  # TPUStrategy adds to its replica's ops some that run on the host.
  inside = [
    node
    for node in whole.node
    if subject.form == "devices" or "_tpu_replicate" in node.attr
  ]
  named = [(_ACTION.search(node.name), node) for node in inside]
  of_actions = [(match[0], node) for match, node in named if match]
  others = [node for match, node in named if not match]
  calls = {action for action, node in of_actions if node.op == "PartitionedCall"}
  missing = sorted(expected.keys() - calls)
  found.expect(
    not missing, f"{len(expected)} actions; {len(missing)} missing{some(missing)}"
  )
  placed = [
    (action, device, op)
    for action, node in of_actions
    for device, op in _walk(node, functions, node.device)
  ]
  wrong = sorted(
    {
      f"{action} is on {device or 'no device'}, not on {expected.get(action)}"
      for action, device, _ in placed
      if device != expected.get(action)
    }
  )
  products = sum(op in _PRODUCTS for *_, op in placed)
  found.expect(
    not wrong,
    f"{len(placed)} operations of actions, {products} of them products and "
    f"convolutions; {len(wrong)} actions not on their core{some(wrong)}",
  )
  _check_others(found, others, functions)
  if subject.form == "devices":
    _check_compiled(found, of_actions, functions)
  return found


def _expected(subject: Placed) -> dict[str, str]:
  """Gives the core of every action, by the name that its calls have."""
  schedule, cores = subject.plan.schedule, subject.cores()
  return {
    scope(action, m): cores[device]
    for device, actions in enumerate(schedule.actions)
    for action in actions
    if action.kind != "U"
    for m in action.micro_batches
  }


def _walk(
  node: Any, functions: Mapping[str, Any], device: str
) -> Iterator[tuple[str, str]]:
  """Lists device and kind of a node, or of all in the functions that it calls."""
  attrs = node.attr.values()
  called = [attr.func.name for attr in attrs if attr.HasField("func")]
  called += [each.name for attr in attrs for each in attr.list.func]
  if not called:
    yield device, node.op
  for name in called:
    for part in functions[name].node_def:
      yield from _walk(part, functions, part.device or device)


def _check_others(
  found: Findings, nodes: Sequence[Any], functions: Mapping[str, Any]
) -> None:
  """Notes what is computed besides actions, and what has no device."""
  parts = [(node, op) for node in nodes for _, op in _walk(node, functions, "")]
  products = [node.name for node, op in parts if op in _PRODUCTS]
  found.expect(
    not products,
    f"{len(products)} products and convolutions besides{some(products)}",
  )
  loose = [n.name for n in nodes if not n.device and n.op not in _ANYWHERE]
  found.expect(not loose, f"{len(loose)} operations on no device{some(loose)}")


def _check_compiled(
  found: Findings, of_actions: Sequence[tuple[str, Any]], functions: Mapping[str, Any]
) -> None:
  """Notes whether each action computes in one compiled function alone."""
  plain = []
  for action, node in of_actions:
    if node.op != "PartitionedCall":
      continue
    body = functions[node.attr["f"].func.name].node_def
    names = [part.attr["f"].func.name for part in body if "f" in part.attr]
    if [functions[name].attr["_XlaMustCompile"].b for name in names] != [True]:
      plain.append(action)
  found.expect(not plain, f"{len(plain)} actions that are not compiled{some(plain)}")


def _check_hlo(subject: Placed) -> Findings:
  """Has XLA compile the step, for the CPU; its text says for which core each op is."""
  found = Findings()
  weights: dict[str, tf.Variable] = {}
  step = _step(subject, weights)
  weights |= _weights(subject, lambda _: tf.device(HOST))
  batch = {
    name: np.zeros(static_shape(spec), spec.dtype.as_numpy_dtype)
    for name, spec in tensor_specs(subject.params).items()
  }
  given, made = (
    [line for _, line in hlo_text.Program(text).products()]
    for text in (tpu_hlo.compiled(step, [batch], f) for f in ("hlo", "optimized_hlo"))
  )
  expected = _expected(subject)
  wrong = []
  for line in given:
    action, core = _ACTION.search(line), _CORE_OF.search(line)
    if not action or not core or not expected[action[0]].endswith(f":{core[1]}"):
      wrong.append(line[:120])
  found.expect(
    not wrong,
    f"{len(given)} products and convolutions, {len(wrong)} not on their core"
    + some(wrong),
  )
  again, kept = (sum("/recompute/" in line for line in own) for own in (given, made))
  found.expect(
    again == kept, f"{again} of them recompute, {kept} do when all is optimized"
  )
  return found


def build(subject: Placed) -> tf.Graph:
  """Builds the step, from variables to sums of gradients, each where it belongs."""
  specs = tensor_specs(subject.params)
  weights: dict[str, tf.Variable] = {}
  step = _step(subject, weights)
  with tf.Graph().as_default() as graph:
    batch = {
      name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name=f"batch/{name}")
      for name, spec in specs.items()
    }
    if subject.form == "devices":
      weights |= _weights(subject, lambda k: tf.device(subject.cores()[k]))
      step(batch)
    else:
      count = len(subject.cores())
      strategy = tpu_described.strategy(count, count)
      with strategy.scope():
        extended: Any = strategy.extended
        weights |= _weights(subject, extended.experimental_logical_device)
      strategy.run(step, (batch,))
  return graph


def _step(subject: Placed, weights: Mapping[str, tf.Variable]) -> Callable:
  """Gives what adds a step to a graph: batch → losses, and sums of gradients."""
  builder = _builder(subject, weights)

  def step(batch: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    result = builder.build(batch, tf.constant(0, tf.int64))
    return [result.micro_batch_losses, *dict(result.gradient_sums).values()]

  return step


def _builder(subject: Placed, weights: Mapping[str, tf.Variable]) -> StepBuilder:
  """Makes the builder, and the functions of layers, which compute constants."""
  params, plan = subject.params, subject.plan
  task = params.task.Instantiate()
  layers = [layer.Instantiate() for layer in task.Layers()]
  mixed_precision.prepare(layers, params.pipeline.compute_dtype, "")
  part = part_specs(tensor_specs(params), plan.schedule.num_micro_batches)
  entering: Any = tuple(part[name] for name in task.INPUT_FIELDS)
  cells = make_cells(
    layers,
    plan.cells,
    entering if len(entering) > 1 else entering[0],
    part,
    execution=Execution(
      xla=params.pipeline.xla, whole=subject.form == "replicated_core"
    ),
  )
  declared = declared_weights(layers)
  trainable = frozenset(name for name, w in declared.items() if w.trainable)
  remat = params.pipeline.remat == "layer"
  for gradient in make_gradients(cells, trainable, remat_layers=remat):
    # Within a tf.Graph they could not be computed any more.
    for name in (
      "forward",
      "recompute",
      "backward",
      "input_gradient",
      "weight_gradient",
    ):
      getattr(gradient, name)
  return StepBuilder(
    cells,
    plan.schedule,
    subject.cores(),
    weights,
    trainable=trainable,
    seed_keys=seed_keys(layers, params.train.seed),
    input_fields=task.INPUT_FIELDS,
    remat_layers=remat,
  )


def _weights(subject: Placed, on: Callable[[int], Any]) -> dict[str, tf.Variable]:
  """Makes the weights of each stage on its core; `on` gives the scope of a core."""
  task, plan = subject.params.task.Instantiate(), subject.plan
  layers = [layer.Instantiate() for layer in task.Layers()]
  made = {}
  for stage, (start, end) in enumerate(plan.cells):
    for name, weight in declared_weights(layers[start:end]).items():
      with on(plan.schedule.placement[0][stage]):
        made[name] = tf.Variable(tf.zeros(weight.shape), trainable=weight.trainable)
  return made
