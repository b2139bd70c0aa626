"""A run: the planned network on its devices, with its learner and its whole state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfpipe.cost import ArraySpec
from tfpipe.input.base import Input
from tfpipe.lazy import tf
from tfpipe.optimizers import loss_scale
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.clock import HOST
from tfpipe.pipeline.loss_window import LossWindow
from tfpipe.pipeline.marks import Marks
from tfpipe.pipeline.pipeline import Pipeline
from tfpipe.pipeline.probe import Probe
from tfpipe.plan import Plan
from tfpipe.program import training
from tfpipe.program.batches import by_shape
from tfpipe.program.checkpoint import Checkpoint, check_matches
from tfpipe.structure import static_shape
from tfpipe.task import Task

LOSSES = "train/recent_losses"
"""Checkpoint entry of `Run.losses`."""


class Run:
  """Everything that a training program holds on devices.

  Attributes:
    params: the Params of the run.
    plan: what was planned from them.
    devices: full names of what trains, by the schedule's device numbers; of several
      pipelines one behind the other.
    pipeline: weights and functions.
    learner: the optimizer and its state.
    input: training input.
    losses: of the last steps, None unless `train.loss_spike` is set.
    marks: how far each device is in a step, None unless `train.step_timeout_secs` is.
    eval_marks: the same in the evaluation of a batch.
  """

  def __init__(self, params: Params, plan: Plan, *, trains: bool = True) -> None:
    self.params = params
    self.plan = plan
    # Everything that can be refused is made before the first device is touched.
    task = params.task.Instantiate()
    self.learner = params.task.learner.Instantiate()
    self.input: Input = params.input.Instantiate()
    self.eval_input: Input | None = (
      params.eval_input.Instantiate() if params.eval_input else None
    )
    placement.set_intra_op_threads(params.pipeline.intra_op_threads)
    self._training = training.make(params, plan, trains=trains)
    self.devices = self._training.devices
    placement.keep_bits()
    if params.train.deterministic:
      tf.config.experimental.enable_op_determinism()
    self.pipeline = self._pipeline(task, self._training.hosts)
    self.learner.create_state(
      self.pipeline.trainable(),
      self.pipeline.l2_names(),
      scales_loss=self.pipeline.scales_loss,
    )
    train = params.train
    self.losses: LossWindow | None = None
    if train.loss_spike:
      refuses = train.on_loss_spike != "warn"
      self.losses = LossWindow(
        train.loss_spike, refuses=refuses, device=self.devices[-1]
      )
    self.marks = self.eval_marks = None
    if train.step_timeout_secs:
      self.eval_marks = Marks(plan.schedule.num_devices)
      # One program for all devices does not tell how far each is.
      if params.pipeline.backend == "devices":
        self.marks = Marks(plan.schedule.num_devices)

  def _pipeline(self, task: Task, devices: Sequence[str]) -> Pipeline:
    params, plan = self.params, self.plan
    return Pipeline(
      [layer.Instantiate() for layer in task.Layers()],
      plan.cells,
      plan.schedule,
      devices,
      input_fields=task.INPUT_FIELDS,
      seed=params.train.seed,
      remat_layers=params.pipeline.remat == "layer",
      execution=Execution(
        serial=params.pipeline.intra_op_threads == 1, xla=params.pipeline.xla
      ),
      compute_dtype=params.pipeline.compute_dtype,
    )

  def probe(self, batch: Mapping[str, tf.Tensor], *, one_device: bool = False) -> Probe:
    """Makes what looks for the layer in which something goes wrong.

    Args:
      batch: a micro-batch of the shape it is for.
      one_device: run all layers on the host, not each where it is.
    """
    self.pull()
    specs = {n: tf.TensorSpec(value.shape, value.dtype) for n, value in batch.items()}
    return self.pipeline.probe(specs, one_device=one_device)

  def train_function(self, *, timed: bool = False) -> Any:
    """Traces the training step; see `Pipeline.train_function`.

    Returns:
      what is called with a batch of `batches`. With `train.steps_per_call` above 1 it
      makes so many steps, and each tensor it gives has a first axis for them.
    """
    return self._training.function(self, timed=timed)

  def eval_function(self) -> Any:
    """Traces evaluation, with the moving averages of the weights if there are any.

    Without an evaluation input it is for batches of the training input.

    Returns:
      a ConcreteFunction; if batches have several shapes a `ByShape`, to be called
      alike.
    """
    source = self.eval_input or self.input
    averages, marks = self.averages(), self.eval_marks
    return by_shape(
      source, lambda specs: self.pipeline.eval_function(specs, averages, marks)
    )

  def eval_on_host(self, batch: Mapping[str, tf.Tensor]) -> None:
    """Evaluates a batch on the host alone, where an error says what has failed.

    Of several devices, one can be told only that another has failed.

    Raises:
      tf.errors.OpError: an operation fails.
    """
    self.pull()
    task = self.params.task.Instantiate()
    alone = self._pipeline(task, [HOST] * self.plan.schedule.num_devices)
    specs = {n: tf.TensorSpec(value.shape, value.dtype) for n, value in batch.items()}
    alone.eval_function(specs, {**self.pipeline.weights, **self.averages()})(batch)

  def averages(self) -> dict[str, tf.Variable]:
    """Gives the moving averages of the weights, by the names of these."""
    prefix = "ema/"
    return {
      name.removeprefix(prefix): variable
      for name, variable in self.learner.state().items()
      if name.startswith(prefix)
    }

  def batches(self) -> Iterable[Any]:
    """Gives the training batches from this step on, brought to the devices.

    With `train.steps_per_call` above 1 so many at a time, along a first axis.

    Raises:
      ValueError: the data has ended before this step, or calls would begin between
        those of a run from the start.
    """
    source = self.input
    if not source.params.repeat and self.step > source.steps_per_epoch:
      raise ValueError(
        f"input.repeat=False: the data ends after step {source.steps_per_epoch}, and "
        f"the run is at step {self.step}; it must be True to go on"
      )
    steps = self.params.train.steps_per_call
    if self.step % steps:
      raise ValueError(
        f"train.steps_per_call={steps}: must divide the step that the run continues "
        f"from, {self.step}"
      )
    return self._training.feed(self, self.input.dataset(start_step=self.step))

  @property
  def step(self) -> int:
    """Mini-batches seen."""
    return int(self.pipeline.step.numpy())

  def pull(self) -> None:
    """Gives all variables the state after the last step."""
    self._training.pull(self.state())

  def state(self) -> dict[str, tf.Variable]:
    """All variables by the names of their checkpoint entries.

    Their values are the state since the last `pull`.
    """
    weights = {f"weights/{name}": v for name, v in self.pipeline.weights.items()}
    losses = {LOSSES: self.losses.losses} if self.losses else {}
    return {**weights, **self.learner.state(), **losses, "step": self.pipeline.step}

  def num_bytes(self) -> int:
    """Gives the size of the state."""
    return sum(spec.bytes for spec in _specs(self.state()).values())

  def checkpoint(self, score: tuple[str, float] | None = None) -> Checkpoint:
    """Copies the state to the host.

    Args:
      score: metric and value for which it is the best of its run.
    """
    self.pull()
    arrays = {name: np.asarray(v.numpy()) for name, v in self.state().items()}
    text = self.params.ToText()
    return Checkpoint(self.step, arrays, self.params.name, text, score)

  def restore(self, checkpoint: Checkpoint) -> None:
    """Takes over a checkpoint, all of it or nothing.

    Raises:
      ValueError: it is of another experiment or model; entries are named.
    """
    if checkpoint.experiment != self.params.name:
      raise ValueError(
        f"the checkpoint is of experiment {checkpoint.experiment}, this run is of "
        f"{self.params.name}; give it a folder of its own"
      )
    checkpoint = self._with_guards(checkpoint)
    check_matches(checkpoint, _specs(self.state()))
    for name, variable in self.state().items():
      variable.assign(checkpoint.arrays[name])
    self._training.push()

  def _with_guards(self, checkpoint: Checkpoint) -> Checkpoint:
    """Lets a run begin or cease to look for spikes, or to scale its loss."""
    arrays, state = dict(checkpoint.arrays), self.state()
    for name in (LOSSES, loss_scale.SCALE, loss_scale.UPDATES):
      if name in state:
        arrays.setdefault(name, state[name].numpy())
      else:
        arrays.pop(name, None)
    return dataclasses.replace(checkpoint, arrays=arrays)

  def weight_specs(self) -> dict[str, ArraySpec]:
    """Gives shape and dtype of every weight by its name."""
    return _specs(self.pipeline.weights)

  def start_from(self, values: Mapping[str, np.ndarray]) -> None:
    """Gives weights other start values, and to what starts as a copy of them.

    Args:
      values: name of a weight → value.
    """
    state = self.learner.state()
    for name, value in values.items():
      self.pipeline.weights[name].assign(value)
      if name in self.learner.weight_names:
        for entry, spec in self.learner.state_specs(name, value.shape).items():
          if spec.initial is None:
            state[entry].assign(value)
    self._training.push()


def tensor_specs(source: Input) -> Mapping[str, tf.TensorSpec]:
  """Gives an input's specs as TensorFlow's."""
  return {
    name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in source.specs().items()
  }


def _specs(variables: Mapping[str, tf.Variable]) -> dict[str, ArraySpec]:
  return {n: ArraySpec(static_shape(v), v.dtype.name) for n, v in variables.items()}
