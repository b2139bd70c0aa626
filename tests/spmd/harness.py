"""Runs small networks as one program for all devices, and on one device, for tests."""

from __future__ import annotations

import numpy as np

from tests.pipeline import harness
from tests.pipeline.networks import Network
from tfpipe import partition, schedule
from tfpipe.optimizers import Learner
from tfpipe.pipeline import placement
from tfpipe.pipeline.pipeline import Pipeline
from tfpipe.schedule.ticks import table
from tfpipe.spmd import strategies
from tfpipe.spmd.devices import Devices
from tfpipe.spmd.feed import Feeder
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.program import Program

MARGIN = 1e-6


def make_program(
  tf,
  network: Network,
  *,
  num_partitions: int,
  num_micro_batches: int,
  name: str = "gpipe",
  num_pipelines: int = 1,
  learner: Learner | None = None,
  compute_dtype: str = "float32",
  remat: str = "cell",
) -> Program:
  """Cuts layers evenly."""
  layers = [p.Instantiate() for p in network.layers()]
  batch = {
    field: array[: array.shape[0] // num_pipelines]
    for field, array in network.batches(1)[0].items()
  }
  staged = StagedNetwork(
    layers,
    partition.balance([1.0] * len(layers), num_partitions),
    harness.specs(tf, batch),
    num_micro_batches,
    input_fields=network.fields,
    seed=harness.SEED,
    compute_dtype=compute_dtype,
    remat=remat,
  )
  made = schedule.make(name, num_partitions, num_micro_batches, remat == "cell")
  return Program(staged, table(made), learner or harness.make_learner(), num_pipelines)


class Spmd:
  """A network on virtual devices, with start values from the device back end."""

  def __init__(
    self, tf, network: Network, steps: int = 1, *, halts: bool = False, **how
  ) -> None:
    placement.keep_bits()
    self._tf = tf
    self.program = make_program(tf, network, **how)
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy, exchanges = strategies.virtual(cpus[: self.program.num_replicas])
    self._feeder = Feeder(strategy, self.program.network.batch, how["num_partitions"])
    self.devices = Devices(self.program, strategy, exchanges, steps, halts=halts)
    self.devices.load(_first_entries(tf, network, how.get("learner")))

  def step(self, batch) -> list[dict]:
    """Trains on a mini-batch; gives arrays."""
    found = self.devices.everywhere(self._feeder.one(batch))
    return self._tf.nest.map_structure(lambda tensor: tensor.numpy(), found)

  def call(self, batches) -> dict:
    """Trains on several mini-batches; gives what the first device gives, as arrays."""
    found = self.devices.step(self._feeder.one(batches))
    return self._tf.nest.map_structure(lambda tensor: tensor.numpy(), found)


def _first_entries(tf, network: Network, learner: Learner | None):
  """Gives the state that a training begins with."""
  pipeline = harness.make_pipeline(tf, network.layers(), input_fields=network.fields)
  again = learner.params.Instantiate() if learner else harness.make_learner()
  again.create_state(pipeline.trainable(), pipeline.l2_names())
  return entries_of(pipeline, again)


def entries(training: harness.Training) -> dict[str, np.ndarray]:
  """Gives the state of the device back end by the names of checkpoint entries."""
  return entries_of(training.pipeline, training.learner)


def entries_of(pipeline: Pipeline, learner: Learner) -> dict[str, np.ndarray]:
  weights = {f"weights/{n}": v.numpy() for n, v in pipeline.weights.items()}
  state = {name: v.numpy() for name, v in learner.state().items()}
  return {**weights, **state, "step": pipeline.step.numpy()}


def assert_near(found, expected, margin: float = MARGIN) -> None:
  """Asserts that arrays differ by little: the norm of what they do, by that of each.

  The largest difference tells more of one sum's rounding, which differs between CPUs.
  """
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    scale = max(_norm(value), 1e-30)
    difference = _norm(found[name] - value) / scale
    assert difference <= margin, (name, difference)


def _norm(value: np.ndarray) -> float:
  return float(np.linalg.norm(np.ravel(value).astype(np.float64)))
