"""The two back ends: what trains the weights of a run, and feeds and names devices.

Whichever it is, weights and the learner's state are variables that evaluation, export
and checkpoints read. A back end that keeps a state of its own while it trains copies it
there when it is asked to (`pull`), and from there when they have changed (`push`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.pipeline.clock import HOST
from tfpipe.plan import Plan
from tfpipe.program import quiet
from tfpipe.program.batches import ahead, by_shape
from tfpipe.schedule import ticks
from tfpipe.spmd import strategies
from tfpipe.spmd.devices import Devices
from tfpipe.spmd.feed import Feeder
from tfpipe.spmd.mini_batch import MiniBatch
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.program import Program

if TYPE_CHECKING:
  from tfpipe.program.run import Run

Variables: TypeAlias = "Mapping[str, tf.Variable]"
"""By the names of checkpoint entries."""


class Training(Protocol):
  """What trains.

  Attributes:
    devices: full names of what computes a step, by the schedule's device numbers.
    hosts: likewise, where the variables are, and evaluation runs.
  """

  devices: tuple[str, ...]
  hosts: tuple[str, ...]

  def function(self, run: Run, *, timed: bool) -> Any:
    """Makes the training step; see `Pipeline.train_function`."""
    ...

  def feed(self, run: Run, batches: tf.data.Dataset) -> Iterable[Any]:
    """Brings batches to where the step reads them, ahead of time."""
    ...

  def pull(self, variables: Variables) -> None:
    """Gives variables the state after the last step."""
    ...

  def push(self) -> None:
    """Has the next step begin with the state that variables have."""
    ...


def make(params: Params, plan: Plan, *, trains: bool) -> Training:
  """Makes the back end of a run; devices are found here.

  Args:
    params: of the run.
    plan: of the run.
    trains: whether a step will be asked for; what only that needs is left alone.

  Raises:
    ValueError: devices are missing.
  """
  kind = OneProgram if params.pipeline.backend == "spmd" else EachAction
  return kind(params, plan, trains=trains)


class EachAction:
  """Each action on its device, by the pipeline itself, which has the variables."""

  def __init__(self, params: Params, plan: Plan, *, trains: bool) -> None:
    number, tpu = plan.schedule.num_devices, params.pipeline.tpu
    if not tpu:
      self.devices = placement.resolve(params.pipeline.devices, number)
    elif trains:
      with quiet.notes():
        self.devices = strategies.cores(tpu, number)
    else:
      self.devices = (HOST,) * number
    self.hosts = self.devices
    first = self.devices[plan.schedule.placement[0][0]]
    self._feeds = HOST if tpu else first  # nobody has tried to prefetch to a core

  def function(self, run: Run, *, timed: bool) -> Any:
    """Traces the step; for several shapes of batches a `ByShape`."""
    return by_shape(
      run.input,
      lambda specs: run.pipeline.train_function(
        run.learner,
        specs,
        timed=timed,
        marks=run.marks,
        losses=run.losses,
        measure_every=run.params.train.log_interval_steps,
      ),
    )

  def feed(self, run: Run, batches: tf.data.Dataset) -> Iterable[Any]:
    """Brings them to the device of the first stage."""
    del run
    return ahead(batches, self._feeds)

  def pull(self, variables: Variables) -> None:
    """Does nothing: they have it."""

  def push(self) -> None:
    """Does nothing: it will."""


class OneProgram:
  """One program on all devices, each with a state of its own while it trains."""

  def __init__(self, params: Params, plan: Plan, *, trains: bool) -> None:
    self._ticks = ticks.table(plan.schedule)
    self._steps = params.train.steps_per_call
    self._replicas, tpu = plan.num_replicas, params.pipeline.tpu
    stages = plan.schedule.num_devices
    number = self._replicas * stages
    self._devices: Devices | None = None
    self._loaded = self._stale = False
    if tpu:
      self.devices, self.hosts = (HOST,) * number, (HOST,) * stages
      if trains:
        with quiet.notes():
          self._strategy, self._exchanges = strategies.tpu(tpu, number)
        self.devices = tuple(self._strategy.extended.worker_devices)
    else:
      self.devices = placement.resolve("cpu", number)
      self.hosts = self.devices[:stages]
      with quiet.notes():
        self._strategy, self._exchanges = strategies.virtual(self.devices)

  def function(self, run: Run, *, timed: bool) -> Any:
    """Traces the program; its function takes what `feed` gives."""
    assert not timed, "only single actions have times"
    params, task = run.params, run.params.task.Instantiate()
    network = StagedNetwork(
      [layer.Instantiate() for layer in task.Layers()],
      run.plan.cells,
      _specs(run),
      run.plan.schedule.num_micro_batches,
      input_fields=task.INPUT_FIELDS,
      seed=params.train.seed,
      compute_dtype=params.pipeline.compute_dtype,
      remat=params.pipeline.remat,
    )
    program = Program(
      network,
      self._ticks,
      run.learner,
      self._replicas,
      measure_every=params.train.log_interval_steps,
    )
    devices = Devices(
      program,
      self._strategy,
      self._exchanges,
      self._steps,
      halts=run.learner.params.nonfinite == "stop",
    )
    self._devices = devices

    def function(batch: Any) -> dict:
      if not self._loaded:
        devices.load({name: v.numpy() for name, v in run.state().items()})
        self._loaded = True
      outputs = devices.step(batch)
      self._stale = True
      run.pipeline.step.assign_add(self._steps)
      return outputs

    return function

  def feed(self, run: Run, batches: tf.data.Dataset) -> Iterable[Any]:
    """Brings them to all devices, those of a call together."""
    if self._steps > 1:
      batches = batches.batch(self._steps, drop_remainder=True)
    own = run.plan.schedule
    mini_batch = MiniBatch(_specs(run), own.num_micro_batches)
    return Feeder(self._strategy, mini_batch, own.num_stages).all(batches)

  def pull(self, variables: Variables) -> None:
    """Copies the state of all devices."""
    if not self._stale:
      return
    assert self._devices is not None
    for name, value in self._devices.entries().items():
      variables[name].assign(value)
    self._stale = False

  def push(self) -> None:
    """Has the state copied to the devices before the next step."""
    self._loaded = self._stale = False


def _specs(run: Run) -> dict[str, tf.TensorSpec]:
  """Gives the fields of a mini-batch of one pipeline."""
  return {
    name: tf.TensorSpec(
      [spec.shape[0] // run.plan.num_replicas, *spec.shape[1:]], spec.dtype
    )
    for name, spec in run.input.specs().items()
  }
