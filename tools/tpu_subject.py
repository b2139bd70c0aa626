"""What `tools.tpu_check` looks at: an experiment's step as one program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfpipe import plan as plan_lib
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program.batches import first_planned
from tfpipe.program.watchdog import Watchdog
from tfpipe.schedule import ticks as ticks_lib
from tfpipe.schedule.ticks import Ticks
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.program import Program


class UnavailableError(Exception):
  """A check cannot be run here."""


@dataclasses.dataclass
class Findings:
  """What a check has found.

  Attributes:
    lines: to be shown.
    wrong: what is not as it must be; empty if the check has passed.
  """

  lines: list[str] = dataclasses.field(default_factory=list)
  wrong: list[str] = dataclasses.field(default_factory=list)

  def expect(self, holds: bool, text: str) -> None:
    """Notes a line, as wrong unless it holds."""
    self.lines.append(("" if holds else "WRONG: ") + text)
    self.wrong += [] if holds else [text]


@dataclasses.dataclass(frozen=True)
class Subject:
  """An experiment, planned; nothing of it is on a device.

  Attributes:
    params: of the run.
    plan: made from them.
    ticks: its schedule.
  """

  params: Params
  plan: Plan
  ticks: Ticks

  def specs(self) -> dict[str, tf.TensorSpec]:
    """Gives the fields of a mini-batch."""
    return tensor_specs(self.params)

  def batch(self) -> Mapping[str, np.ndarray]:
    """Gives the first mini-batch."""
    with Watchdog(self.params.train.step_timeout_secs) as watchdog:
      source = self.params.input.Instantiate()
      batch = first_planned(source, "checking", watchdog)
    return {name: field.numpy() for name, field in batch.items()}

  def program(self, num_micro_batches: int = 0) -> Program:
    """Makes the program that all devices would run.

    Args:
      num_micro_batches: of each pipeline, for a mini-batch of fewer of the same size,
        if the ticks are for so many; 0 for the run's.
    """
    whole = self.params.pipeline.num_micro_batches
    number = num_micro_batches or self.plan.schedule.num_micro_batches
    batch = {
      name: tf.TensorSpec(
        [spec.shape[0] // whole * number, *spec.shape[1:]], spec.dtype
      )
      for name, spec in self.specs().items()
    }
    params, task = self.params, self.params.task.Instantiate()
    network = StagedNetwork(
      [layer.Instantiate() for layer in task.Layers()],
      self.plan.cells,
      batch,
      number,
      input_fields=task.INPUT_FIELDS,
      seed=params.train.seed,
      compute_dtype=params.pipeline.compute_dtype,
      remat=params.pipeline.remat,
    )
    learner = params.task.learner.Instantiate()
    return Program(network, self.ticks, learner, self.plan.num_replicas)

  def title(self) -> str:
    """Says in a line what is looked at."""
    lengths = ", ".join(str(end - start) for start, end in self.plan.cells)
    pipe = self.params.pipeline
    return (
      f"{self.params.name}: {f'R={pipe.num_replicas}, ' * (pipe.num_replicas > 1)}"
      f"K={pipe.num_partitions}, M={pipe.num_micro_batches}, "
      f"{self.ticks.name} in {self.ticks.num_ticks} ticks; layers in each stage: "
      f"{lengths}"
    )


def tensor_specs(params: Params) -> dict[str, tf.TensorSpec]:
  """Gives the fields of a mini-batch of a run."""
  specs = params.input.Instantiate().specs()
  return {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}


def make(params: Params) -> Subject:
  """Plans a run, and refuses what one program for all devices cannot be.

  Raises:
    ValueError, TypeError, AttributeError, LookupError, OSError: a field is not allowed.
  """
  params.pipeline.backend = "spmd"
  plan = plan_lib.make(params)
  return Subject(params, plan, ticks_lib.table(plan.schedule))
