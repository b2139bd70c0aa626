"""Prints how much memory training steps take; run by test_memory.

TensorFlow is imported once; every case is a fork of that process from before the first
operation, so that what one case leaves does not hide the peak of another.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.pipeline import harness, toy, toy_bodies
from tests.pipeline.networks import Network
from tfpipe.pipeline.placement import make_logical_cpus

DIM = 64
LAYERS = 8
LAYER_TYPES = {"Dense": toy.Dense, "Deep": toy_bodies.Deep}


def batch(rows: int) -> dict[str, np.ndarray]:
  x = np.zeros((rows, DIM), np.float32)
  return {"x": x, "target": x, "weight": np.ones(rows, np.float32)}


def peak_bytes(
  rows: int, num_micro_batches: int, name: str, remat: str, layer: str = "Dense"
) -> tuple[int, int]:
  """Gives by how much a step raises the memory of this process, at least and at most.

  Which temporary values of two devices meet is a matter of chance, and of other work on
  the machine; so is what a step before has left free. What the schedule keeps is there
  in every one of the steps.
  """
  make_logical_cpus(2)
  params = LAYER_TYPES[layer].Params().Set(dim=DIM)
  layers = toy.named(*[params] * LAYERS, toy.Regression.Params().Set(dim=DIM))
  network = Network(lambda: layers, ("x",), lambda _: [batch(rows)])
  training = harness.start(
    tf,
    network,
    num_partitions=2,
    num_micro_batches=num_micro_batches,
    name=name,
    remat=remat,
  )
  tensors = {name: tf.constant(array) for name, array in batch(rows).items()}
  training.function(tensors)
  raised = [_raised_by(lambda: training.function(tensors)) for _ in range(3)]
  return min(raised), max(raised)


def _raised_by(step: Callable[[], object]) -> int:
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  pathlib.Path("/proc/self/clear_refs").write_text("5")
  before = _status("VmRSS")
  step()
  return _status("VmHWM") - before


def _status(field: str) -> int:
  """Reads a size of this process: resident (VmRSS) or its peak (VmHWM)."""
  for line in pathlib.Path("/proc/self/status").read_text().splitlines():
    if line.startswith(field + ":"):
      return 1024 * int(line.split()[1])
  raise LookupError(field)


def main() -> None:
  for case in json.loads(sys.argv[1]):
    if os.fork() == 0:
      print(*peak_bytes(*case), flush=True)
      os._exit(0)
    os.wait()


if __name__ == "__main__":
  main()
