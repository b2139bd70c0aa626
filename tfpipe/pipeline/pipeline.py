"""A network on its devices: its weights, and the functions that train and test it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import name_key
from tfpipe.lazy import tf
from tfpipe.optimizers.gradients import HOST
from tfpipe.optimizers.learner import Learner
from tfpipe.optimizers.loss_scale import SCALE
from tfpipe.pipeline import checks, mixed_precision
from tfpipe.pipeline.builder import StepBuilder
from tfpipe.pipeline.call import PLAIN, Execution
from tfpipe.pipeline.cell import Cell, make_cells
from tfpipe.pipeline.clock import Clock
from tfpipe.pipeline.loss_window import LossWindow
from tfpipe.pipeline.marks import Marks
from tfpipe.pipeline.micro_batch import micro_batch_size
from tfpipe.pipeline.probe import Probe
from tfpipe.pipeline.step_result import Metrics
from tfpipe.schedule import forward
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, order
from tfpipe.structure import static_shape
from tfpipe.traced import call, specs, trace

Batch: TypeAlias = "Mapping[str, tf.TensorSpec]"


class Pipeline:
  """The layers of a network, cut into cells, on devices.

  Attributes:
    weights: global name → variable, on the device of the stage that owns it.
    step: int64 variable, the mini-batches seen; random numbers go by it.
    scales_loss: whether a learner must scale the loss, for float16 gradients.

  Raises:
    ValueError: layers, cut, schedule and devices do not fit, a device does not exist,
      or a `tf.distribute` strategy is in scope.
  """

  def __init__(
    self,
    layers: Sequence[Layer],
    ranges: Sequence[tuple[int, int]],
    schedule: Schedule,
    devices: Sequence[str],
    *,
    input_fields: Sequence[str],
    seed: int = 0,
    remat_layers: bool = False,
    execution: Execution = PLAIN,
    compute_dtype: str = "float32",
  ) -> None:
    checks.check_strategy()
    checks.check_layers(layers, ranges)
    checks.check_schedule(schedule, len(ranges))
    checks.check_devices(devices, schedule)
    self._layers = layers
    self._ranges = ranges
    self._schedule = schedule
    self._devices = devices
    self._input_fields = tuple(input_fields)
    self._remat_layers = remat_layers
    self._execution = execution
    self._declared = declared_weights(layers)
    self.scales_loss = compute_dtype == "float16"
    mixed_precision.prepare(layers, compute_dtype, SCALE if self.scales_loss else "")
    # TensorFlow forgets functions within loops and branches with the graph of the layer
    # that made them, even if a step calls them.
    self._traced: list[StepBuilder] = []
    self.weights = self._create_weights(seed)
    with tf.device(devices[0]):
      self.step = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="step")
    self._seed_keys = seed_keys(layers, seed)

  def trainable(self) -> dict[str, tf.Variable]:
    """The weights that learn, by name."""
    return {n: v for n, v in self.weights.items() if self._declared[n].trainable}

  def l2_names(self) -> list[str]:
    """Names of the weights that the L2 term of the loss counts."""
    return [n for n, w in self._declared.items() if w.l2 and w.trainable]

  def train_function(
    self,
    learner: Learner,
    batch: Batch,
    *,
    timed: bool = False,
    marks: Marks | None = None,
    losses: LossWindow | None = None,
    measure_every: int | None = None,
  ) -> tf.types.experimental.ConcreteFunction:
    """Traces one synchronous training step.

    Args:
      learner: has its state created for `trainable()`; with `scales_loss` if the
        pipeline computes in float16.
      batch: specs [batch, ...] of the fields of a mini-batch.
      timed: whether a step reports when it did what.
      marks: where each device counts the actions that it has done.
      losses: what the loss is compared with. An update is skipped as one that is not
        finite if the loss is a spike and it says so.
      measure_every: the steps at whose multiples `update` tells norms of the update and
        of the weights, which take time; None for never.

    Returns:
      function of a batch dict → dict with `metrics` (name → (sum, weight)), `update`
      (what `Learner.apply` reports), `micro_batch_losses`, and `finite`: whether all
      losses and batch moments are. If timed also `times`: float64 [number of actions,
      2], seconds at which each of `timed_actions` started and ended, and `ends`:
      float64 [number of devices], when the update of each was done. With `losses`
      also `spike`, a bool, and `median`.
    """
    weights = {**self.weights, **self._loss_scale(learner.state())}
    builder = self._builder(self._schedule, batch, weights, do_eval=False)

    def step(batch: Mapping[str, tf.Tensor]) -> dict:
      result = builder.build(batch, self.step.read_value(), timed=timed, marks=marks)
      # A loss or a moment that is not finite must not be learned from, whatever the
      # gradients are.
      moments = [value for pair in result.moments.values() for value in pair]
      finite = _all_finite([result.micro_batch_losses, *moments])
      usable, judged = finite, {}
      if losses:
        total, weight = result.metrics["loss"]
        spike, median = losses.add(total / weight)
        usable = finite & tf.logical_not(spike) if losses.refuses else finite
        judged = {"spike": spike, "median": median}
      weight = tf.where(usable, result.metrics["loss"][1], math.nan)
      measure = False
      if measure_every:
        measure = (self.step.read_value() + 1) % measure_every == 0
      update = learner.apply(result.gradient_sums, weight, measure, packed=True)
      moves = usable & tf.logical_not(update["skipped"])
      self._move(result.moments, builder.moment_decays(), moves)
      with tf.control_dependencies(marks.taken() if marks else []):
        self.step.assign_add(1)
      times = self._ends(result.times) if timed else {}
      return {
        "metrics": result.metrics,
        "update": update,
        "micro_batch_losses": result.micro_batch_losses,
        "finite": finite,
        **times,
        **judged,
      }

    return tf.function(step, autograph=False).get_concrete_function(dict(batch))

  def _ends(self, times: tf.Tensor | None) -> dict[str, tf.Tensor | None]:
    """Adds to the times of all actions when each device has made its changes."""
    ops = tf.compat.v1.get_default_graph().get_operations()
    changes = [o for o in ops if o.op_def.is_stateful and o.type != "ReadVariableOp"]
    clock, ends = Clock(), []
    for device in self._devices:
      own = [op for op in changes if op.device.endswith(device)]
      with tf.control_dependencies([*own, *([] if times is None else [times])]):
        ends.append(clock.read(device))
    return {"times": times, "ends": tf.stack(ends)}

  def gradient_function(self, batch: Batch) -> tf.types.experimental.ConcreteFunction:
    """Traces what `train_function` does before the update; nothing changes by it.

    Args:
      batch: specs [batch, ...] of the fields of a mini-batch.

    Returns:
      function of a batch dict → dict with `gradient_sums`, `metrics`, `moments` and
      `micro_batch_losses`, see `StepResult`.
    """
    weights = {**self.weights, **self._loss_scale()}
    builder = self._builder(self._schedule, batch, weights, do_eval=False)

    def gradients(batch: Mapping[str, tf.Tensor]) -> dict:
      result = builder.build(batch, self.step.read_value())
      return {
        "gradient_sums": dict(result.gradient_sums),
        "metrics": result.metrics,
        "moments": result.moments,
        "micro_batch_losses": result.micro_batch_losses,
      }

    return tf.function(gradients, autograph=False).get_concrete_function(dict(batch))

  def timed_actions(self) -> list[Action]:
    """The actions, in order, whose times a timed step reports."""
    return [action for action in order(self._schedule) if action.kind != "U"]

  @property
  def eval_schedule(self) -> Schedule:
    """The forwards of an evaluation."""
    own = self._schedule
    return forward.schedule(len(self._ranges), own.num_micro_batches, own.placement)

  def eval_function(
    self,
    batch: Batch,
    weights: Mapping[str, tf.Variable] | None = None,
    marks: Marks | None = None,
  ) -> tf.types.experimental.ConcreteFunction:
    """Traces the evaluation of one batch; nothing changes by calling it.

    Args:
      batch: specs [batch, ...] of the fields.
      weights: replacements by name, e.g. moving averages of the weights.
      marks: where each device counts the forwards that it has done.

    Returns:
      function of a batch dict → metrics, name → (sum, weight).
    """
    values = {**self.weights, **(weights or {}), **self._loss_scale()}
    builder = self._builder(self.eval_schedule, batch, values, do_eval=True)

    def evaluate(batch: Mapping[str, tf.Tensor]) -> Metrics:
      result = builder.build(batch, self.step.read_value(), marks=marks)
      with tf.control_dependencies(marks.taken() if marks else []):
        return tf.nest.map_structure(tf.identity, result.metrics)

    return tf.function(evaluate, autograph=False).get_concrete_function(dict(batch))

  def _builder(
    self,
    schedule: Schedule,
    batch: Batch,
    weights: Mapping[str, tf.Variable],
    *,
    do_eval: bool,
  ) -> StepBuilder:
    checks.check_fields(batch, self._layers, self._input_fields)
    part = part_specs(batch, schedule.num_micro_batches)
    cells = self._cells(part, self._ranges, do_eval=do_eval)
    checks.check_metrics(cells[-1].function.out_specs, self._layers[-1].name)
    builder = StepBuilder(
      cells,
      schedule,
      self._devices,
      weights,
      trainable=frozenset(self.trainable()),
      seed_keys=self._seed_keys,
      input_fields=self._input_fields,
      remat_layers=self._remat_layers,
    )
    self._traced.append(builder)
    return builder

  def _cells(
    self, part: Batch, ranges: Sequence[tuple[int, int]], *, do_eval: bool = False
  ) -> list[Cell]:
    """Traces cells for micro-batches of these specs."""
    inputs = [part[name] for name in self._input_fields]
    return make_cells(
      self._layers,
      ranges,
      tuple(inputs) if len(inputs) > 1 else inputs[0],
      part,
      do_eval=do_eval,
      execution=self._execution,
    )

  def probe(self, part: Batch, *, one_device: bool = False) -> Probe:
    """Makes what looks for the layer in which something goes wrong.

    Args:
      part: specs of the fields of a micro-batch.
      one_device: run all layers on the host, not each where it is.
    """
    devices = [
      HOST if one_device else self._devices[self._schedule.placement[0][stage]]
      for stage, (start, end) in enumerate(self._ranges)
      for _ in range(start, end)
    ]
    weights = {**self.weights, **self._loss_scale()}
    if one_device:
      # Read on another, a weight that is still to come is cancelled by an error, and
      # may be all that is told of it.
      with tf.device(HOST):
        weights = {name: tf.Variable(value) for name, value in weights.items()}
    return Probe(
      self._cells(part, [(i, i + 1) for i in range(len(self._layers))]),
      devices,
      weights,
      part,
      trainable=frozenset(self.trainable()),
      seed_keys=self._seed_keys,
      input_fields=self._input_fields,
    )

  def _loss_scale(
    self, state: Mapping[str, tf.Variable] | None = None
  ) -> dict[str, tf.Variable]:
    """Gives what losses are scaled by: of a learner's state, or 1."""
    if not self.scales_loss:
      return {}
    if state is None:
      return {SCALE: tf.Variable(tf.ones([]), trainable=False)}
    if SCALE not in state:
      raise ValueError(
        "a pipeline that computes in float16 needs a learner that scales the loss: "
        "create its state with scales_loss=True"
      )
    return {SCALE: state[SCALE]}

  def _create_weights(self, seed: int) -> dict[str, tf.Variable]:
    weights = {}
    for stage, (start, end) in enumerate(self._ranges):
      device = self._devices[self._schedule.placement[0][stage]]
      for name, weight in declared_weights(self._layers[start:end]).items():
        with tf.device(device):
          value = weight.init.values(name, weight.shape, seed)
          # Without a name of its own, for which TensorFlow would make a kernel.
          weights[name] = tf.Variable(value, trainable=weight.trainable)
    return weights

  def _move(
    self,
    moments: Mapping[str, tuple[tf.Tensor, tf.Tensor]],
    decays: Mapping[str, float],
    moves: tf.Tensor,
  ) -> None:
    """Steps the moving statistics once, unless the mini-batch is skipped."""
    by_device: dict[str, list[tuple[tf.Variable, float, tf.Tensor]]] = {}
    for name, pair in moments.items():
      for kind, value in zip(("moving_mean", "moving_variance"), pair, strict=True):
        moving = self.weights[f"{name}/{kind}"]
        row = (moving, decays[name], value)
        by_device.setdefault(moving.device, []).append(row)
    for device, rows in by_device.items():
      values = [value for *_, value in rows]
      with tf.device(device):
        trace(_mover(rows), specs([moves, *values]))(moves, *values)


def part_specs(batch: Batch, num_micro_batches: int) -> dict[str, tf.TensorSpec]:
  """Gives the specs of one of so many micro-batches of a mini-batch."""
  shapes = {name: static_shape(spec) for name, spec in batch.items()}
  size = micro_batch_size(next(iter(shapes.values()))[0], num_micro_batches)
  return {
    name: tf.TensorSpec([size, *shapes[name][1:]], spec.dtype)
    for name, spec in batch.items()
  }


def _mover(
  rows: Sequence[tuple[tf.Variable, float, tf.Tensor]],
) -> Callable[..., list[tf.Tensor]]:
  """Gives the body of the function that steps some moving statistics."""

  def body(moves: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
    for (moving, decay, _), value in zip(rows, values, strict=True):
      old = moving.read_value()
      new = old + (1.0 - decay) * (value - old)
      moving.assign(tf.where(moves, new, old))
    return []

  return body


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Says whether every number of some tensors is finite: a bool scalar."""

  def body(*own: tf.Tensor) -> list[tf.Tensor]:
    return [tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in own])]

  by_device: dict[str, list[tf.Tensor]] = {}
  for tensor in tensors:
    by_device.setdefault(tensor.device, []).append(tensor)
  flags = []
  for device, own in by_device.items():
    with tf.device(device):
      flags += call(trace(body, specs(own)), own)
  return tf.reduce_all(tf.stack(flags))


def seed_keys(layers: Sequence[Layer], seed: int) -> dict[str, int]:
  """Gives the key of each seed of layers by global name."""
  return {
    f"{layer.name}/{path}": name_key(f"{seed}/{layer.name}/{path}")
    for layer in layers
    for path in layer.seeds()
  }


def declared_weights(layers: Sequence[Layer]) -> dict[str, WeightParams]:
  """Lists the weights that layers own by global name; tied ones belong to another."""
  return {
    f"{layer.name}/{path}": weight
    for layer in layers
    for path, weight in layer.weights().items()
    if not weight.tied_to
  }
