"""Measures one thread's rate of matrix products of a Transformer's size."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from absl import app, flags

from tfpipe.lazy import tf
from tfpipe.pipeline import placement
from tools.benchmark_step import STEPS

_SIZE = flags.DEFINE_integer("size", 1024, "Rows and columns of the matrices.")


def main(argv: Sequence[str]) -> None:
  """Measures and prints one line of JSON."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  placement.set_intra_op_threads(1)
  size = _SIZE.value
  a = tf.random.stateless_uniform([size, size], (1, 2))
  secs = []
  for _ in range(10 * STEPS.value):
    start = time.perf_counter()
    tf.matmul(a, a).numpy()
    secs.append(time.perf_counter() - start)
  print(json.dumps({"secs_per_flop": [s / (2 * size**3) for s in secs]}))


if __name__ == "__main__":
  app.run(main)
