"""Builds the graph of one step: each action of a schedule on its device, in order.

    for every action, in an order that all devices' lists agree with:
      under the device of its stage, after that device's previous action:
        F   call the cell                      (under a tape unless R follows)
        R   call it again under a tape
        BW  ask the tape for the gradients of input and weights; add the latter up

Nothing here knows the name of a schedule.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tfpipe.lazy import tf
from tfpipe.pipeline import micro_batch
from tfpipe.pipeline.cell import Cell, CellOutputs
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, order
from tfpipe.structure import is_differentiable, static_shape

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"
_Nest = TypeVar("_Nest")
Metrics: TypeAlias = "dict[str, tuple[tf.Tensor, tf.Tensor]]"


@dataclasses.dataclass(frozen=True)
class StepResult:
  """What the schedule computed for one mini-batch.

  Attributes:
    gradient_sums: per trainable weight, d(sum of losses)/d(weight) over the mini-batch.
    metrics: name → (sum, weight) over the mini-batch. `loss` is what is differentiated:
      the last cell's and those that layers add.
    moments: name of each batch norm → (mean, variance) pooled over micro-batches.
    micro_batch_losses: float32 [num_micro_batches], the loss sum of each.
  """

  gradient_sums: dict[str, tf.Tensor]
  metrics: Metrics
  moments: dict[str, tuple[tf.Tensor, tf.Tensor]]
  micro_batch_losses: tf.Tensor


@dataclasses.dataclass
class _Call:
  """A call of a cell whose gradient is still to be asked for."""

  tape: tf.GradientTape
  inputs: list[tf.Tensor]
  theta: list[tf.Tensor]
  outputs: CellOutputs


class StepBuilder:
  """Adds one step, of training or (with forwards only) of evaluation, to the graph."""

  def __init__(
    self,
    cells: Sequence[Cell],
    schedule: Schedule,
    devices: Sequence[str],
    weights: Mapping[str, tf.Variable],
    *,
    trainable: frozenset[str],
    seed_keys: Mapping[str, int],
    input_fields: Sequence[str],
  ) -> None:
    self._cells = cells
    self._schedule = schedule
    self._devices = devices
    self._weights = weights
    self._trainable = trainable
    self._seed_keys = seed_keys
    self._input_fields = input_fields
    self._order = order(schedule)
    # A forward is taped if its backward needs what it computes on the way.
    kinds = {(a.kind, a.stage, a.micro_batch) for a in self._order}
    self._taped = {
      (stage, m)
      for kind, stage, m in kinds
      if kind == "BW" and ("R", stage, m) not in kinds
    }

  def moment_decays(self) -> dict[str, float]:
    """Name of each batch norm that hands out moments → decay of its averages."""
    return dict(pair for cell in self._cells for pair in cell.moment_names())

  def build(self, batch: Mapping[str, tf.Tensor], step: tf.Tensor) -> StepResult:
    """Runs the schedule on a mini-batch; call it inside a tf.function.

    Args:
      batch: fields [batch, ...].
      step: int64 scalar, for random numbers.
    """
    return _Step(self, batch, step).run()


class _Step:
  """The state of one step while its graph is being built."""

  def __init__(
    self, builder: StepBuilder, batch: Mapping[str, tf.Tensor], step: tf.Tensor
  ) -> None:
    self._b = builder
    self._step = step
    self._num = builder._schedule.num_micro_batches
    self._batch = batch
    self._last: dict[str, list[tf.Operation]] = {d: [] for d in builder._devices}
    self._inputs: dict[tuple[int, int], list[tf.Tensor]] = {}
    self._calls: dict[tuple[int, int], _Call] = {}
    self._dys: dict[tuple[int, int], list[Gradient | None]] = {}
    self._sums: dict[int, list[Any]] = {}
    self._moments: dict[int, list[list[tf.Tensor]]] = {}
    self._metrics: list[Metrics] = []
    # Losses that layers add, by micro-batch, in the order of the layers.
    self._added_losses: list[list[tf.Tensor]] = [[] for _ in range(self._num)]
    self._feeds = [self._feed(stage) for stage in range(len(builder._cells))]
    self._theta = [self._read(stage) for stage in range(len(builder._cells))]
    self._accumulate = tf.function(_accumulate, autograph=False)

  def run(self) -> StepResult:
    actions = {"F": self._forward, "R": self._taped_call, "BW": self._backward}
    for action in self._b._order:
      # U needs no node of its own: the update depends on the sums.
      if action.kind != "U":
        with self._place(action):
          actions[action.kind](action.stage, action.micro_batch)
    return self._result()

  @contextlib.contextmanager
  def _place(self, action: Action) -> Iterator[None]:
    device = self._device(action.stage)
    scope = f"stage{action.stage}/micro{action.micro_batch}/{_SCOPES[action.kind]}/"
    with (
      tf.device(device),
      tf.control_dependencies(self._last[device]),
      tf.name_scope(scope),
    ):
      yield

  def _device(self, stage: int) -> str:
    return self._b._devices[self._b._schedule.placement[0][stage]]

  def _feed(self, stage: int) -> list[dict[str, tf.Tensor]]:
    """Gives the micro-batches of the batch fields that a stage reads."""
    names = self._b._cells[stage].side
    if stage == 0:
      names = (*self._b._input_fields, *names)
    with tf.device(self._device(stage)), tf.name_scope(f"stage{stage}/split"):
      return micro_batch.split({n: self._batch[n] for n in names}, self._num)

  def _read(self, stage: int) -> list[tf.Tensor]:
    names = self._b._cells[stage].weight_names()
    with tf.device(self._device(stage)), tf.name_scope(f"stage{stage}/weights"):
      return [tf.identity(self._b._weights[name].read_value()) for name in names]

  def _seeds(self, stage: int, m: int) -> tf.Tensor:
    names = self._b._cells[stage].seed_names()
    size = static_shape(next(iter(self._batch.values())))[0] // self._num
    keys = tf.constant([self._b._seed_keys[name] for name in names], tf.int64)
    rest = tf.stack([self._step, tf.constant(m * size, tf.int64)])
    rows = tf.tile(rest[None], [len(names), 1])
    return tf.concat([keys[:, None], rows], axis=1)

  def _call(self, stage: int, m: int, inputs: list[tf.Tensor]) -> CellOutputs:
    cell = self._b._cells[stage]
    feed = self._feeds[stage][m]
    side = {name: feed[name] for name in cell.side}
    seeds, side = _handed_on((self._seeds(stage, m), side))
    outputs = cell.function(self._theta[stage], seeds, inputs, side)
    self._done(stage, [*outputs.tensors, *outputs.losses])
    return outputs

  def _taped_call(self, stage: int, m: int) -> CellOutputs:
    inputs, theta = _handed_on(self._inputs[stage, m]), self._theta[stage]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([x for x in inputs if is_differentiable(x)])
      tape.watch([theta[i] for i in self._trainable(stage)])
      outputs = self._call(stage, m, inputs)
    self._calls[stage, m] = _Call(tape, inputs, theta, outputs)
    return outputs

  def _done(self, stage: int, tensors: Sequence[tf.Tensor]) -> None:
    """Lets the device's next action wait for these tensors."""
    # The backward of a frozen stage may have none: then the chain stays as it is.
    if tensors:
      self._last[self._device(stage)] = [t.op for t in _handed_on(tensors)]

  def _trainable(self, stage: int) -> list[int]:
    names = self._b._cells[stage].weight_names()
    return [i for i, name in enumerate(names) if name in self._b._trainable]

  def _forward(self, stage: int, m: int) -> None:
    if stage == 0:
      feed = self._feeds[0][m]
      self._inputs[0, m] = [feed[name] for name in self._b._input_fields]
    if (stage, m) in self._b._taped:
      outputs = self._taped_call(stage, m)
    else:
      outputs = self._call(stage, m, _handed_on(self._inputs[stage, m]))
    self._moments.setdefault(stage, []).append(outputs.moments)
    self._added_losses[m] += outputs.losses
    if stage + 1 < len(self._b._cells):
      self._inputs[stage + 1, m] = outputs.tensors
    else:
      metrics = self._b._cells[stage].function.out.pack(outputs.tensors)
      self._metrics.append(metrics)

  def _backward(self, stage: int, m: int) -> None:
    call = self._calls.pop((stage, m))
    targets, dys = self._targets(stage, m, call.outputs)
    inputs = [x for x in call.inputs if is_differentiable(x)] if stage else []
    theta = [call.theta[i] for i in self._trainable(stage)]
    found = call.tape.gradient(
      targets, [*inputs, *theta], output_gradients=_handed_on(dys)
    )
    if stage:
      rest = iter(found)
      self._dys[stage - 1, m] = [
        next(rest) if is_differentiable(x) else None for x in call.inputs
      ]
    ends = tf.nest.flatten(found[: len(inputs)], expand_composites=True)
    ends += self._add(stage, found[len(inputs) :])
    self._done(stage, [tensor for tensor in ends if tensor is not None])
    del self._inputs[stage, m]

  def _targets(
    self, stage: int, m: int, outputs: CellOutputs
  ) -> tuple[list[tf.Tensor], list[Any]]:
    """Pairs what is differentiated with its upstream gradient."""
    targets = list(outputs.losses)
    if stage + 1 == len(self._b._cells):
      metrics = self._b._cells[stage].function.out.pack(outputs.tensors)
      targets.append(metrics["loss"][0])
    dys: list[Any] = [tf.ones_like(t) for t in targets]
    for tensor, dy in zip(outputs.tensors, self._dys.pop((stage, m), []), strict=False):
      if dy is not None:
        targets.append(tensor)
        dys.append(dy)
    return targets, dys

  def _add(self, stage: int, gradients: Sequence[Gradient | None]) -> list[tf.Tensor]:
    """Adds a micro-batch's weight gradients to the stage's one buffer per weight.

    Returns:
      a tensor that is there when all have been added; none if there are no gradients.
    """
    sums = list(self._sums.get(stage, [None] * len(gradients)))
    some = [i for i, g in enumerate(gradients) if g is not None]
    end = []
    if some:
      *new, last = self._accumulate(
        [sums[i] for i in some], [gradients[i] for i in some]
      )
      end = [last]
      for i, value in zip(some, new, strict=True):
        sums[i] = value
    self._sums[stage] = sums
    return end

  def _result(self) -> StepResult:
    last = self._device(len(self._b._cells) - 1)
    with tf.device(last), tf.name_scope("metrics"):
      losses = [
        _sum([metrics["loss"][0], *added])
        for metrics, added in zip(self._metrics, self._added_losses, strict=True)
      ]
      metrics = {
        name: (
          _sum([m[name][0] for m in self._metrics]),
          _sum([m[name][1] for m in self._metrics]),
        )
        for name in self._metrics[0]
      }
      metrics["loss"] = (_sum(losses), metrics["loss"][1])
      return StepResult(
        self._gradient_sums(), metrics, self._pooled_moments(), tf.stack(losses)
      )

  def _gradient_sums(self) -> dict[str, tf.Tensor]:
    """Adds the contributions of all uses of a weight, in layer order, on its device."""
    uses: dict[str, list[Any]] = {}
    for stage, sums in sorted(self._sums.items()):
      names = self._b._cells[stage].weight_names()
      for index, value in zip(self._trainable(stage), sums, strict=True):
        if value is not None:
          uses.setdefault(names[index], []).append(value)
    total = {}
    for name, values in uses.items():
      with tf.device(self._b._weights[name].device):
        total[name] = _sum(values)
    return total

  def _pooled_moments(self) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    pooled = {}
    for stage, flats in self._moments.items():
      names = self._b._cells[stage].moment_names()
      with tf.device(self._device(stage)), tf.name_scope(f"stage{stage}/moments"):
        for i, (name, _) in enumerate(names):
          pooled[name] = _pool(
            [flat[2 * i] for flat in flats], [flat[2 * i + 1] for flat in flats]
          )
    return pooled


_SCOPES = {"F": "forward", "R": "recompute", "BW": "backward"}


def _handed_on(nest: _Nest) -> _Nest:
  """Passes each tensor through an op of its own, in the control dependencies in scope.

  When TensorFlow inlines a call, control dependencies of it and on it are lost, and so
  is the schedule. An action waits in its inputs and is waited for by its outputs.
  """
  return tf.nest.map_structure(tf.identity, nest, expand_composites=True)


def _accumulate(
  sums: list[tf.Tensor | None], gradients: list[Gradient]
) -> list[tf.Tensor]:
  """Gives the new sums, and once more the first, when all are there."""
  dense = [tf.convert_to_tensor(g) for g in gradients]
  new = [
    g if total is None else total + g for total, g in zip(sums, dense, strict=True)
  ]
  with tf.control_dependencies(new):
    return [*new, tf.identity(new[0])]


def _sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
  total = values[0]
  for value in values[1:]:
    total = total + value
  return total


def _pool(
  means: Sequence[tf.Tensor], variances: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Gives mean and variance over the mini-batch from its equal micro-batches'."""
  all_means = tf.stack(means)
  mean = tf.reduce_mean(all_means, axis=0)
  spread = tf.math.squared_difference(all_means, mean)
  return mean, tf.reduce_mean(tf.stack(variances) + spread, axis=0)
