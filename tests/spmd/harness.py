"""Runs small networks on virtual devices, and one after the other, for tests."""

from __future__ import annotations

import numpy as np

from tests.pipeline import harness
from tests.pipeline.networks import Network
from tfpipe import partition, schedule
from tfpipe.optimizers import Learner
from tfpipe.schedule.ticks import table
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.program import Program
from tfpipe.spmd.virtual import VirtualDevices


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
  )
  made = schedule.make(name, num_partitions, num_micro_batches, remat=True)
  return Program(staged, table(made), learner or harness.make_learner(), num_pipelines)


def start(tf, network: Network, **how) -> VirtualDevices:
  program = make_program(tf, network, **how)
  cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
  return VirtualDevices(program, cpus[: program.num_replicas])


def parts(batch: dict[str, np.ndarray], number: int) -> list[dict[str, np.ndarray]]:
  """Cuts a mini-batch into those of pipelines."""
  cut = {name: np.split(array, number) for name, array in batch.items()}
  return [{name: pieces[i] for name, pieces in cut.items()} for i in range(number)]
