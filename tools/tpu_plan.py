"""What a core needs for the one program, from the plan of a device of its own.

The plan knows stages, each as large as it is. In the program of all stages what a core
keeps are vectors of the longest stage's length, and a compiler copies some of them.
What comes and goes within a tick it lays into the core's own memory if there is room.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tfpipe.lazy import tf
from tfpipe.plan import Plan
from tfpipe.spmd.program import Program
from tfpipe.structure import static_shape

ON_CORE = 128 * 2**20
"""The most bytes of a core's own memory: VMEM of v5e and v6e, CMEM of v4."""
_ROW = 128
"""Numbers in a row of a core's tiles."""


@dataclasses.dataclass(frozen=True)
class CoreBytes:
  """What a core has at once in its large memory (HBM).

  Attributes:
    least: bytes if its own memory is full of what comes and goes.
    most: bytes if nothing is there.
  """

  least: int
  most: int


def core_bytes(plan: Plan, program: Program, cell: int = -1) -> CoreBytes:
  """Returns the bytes that a core has at once.

  Args:
    plan: of the run.
    program: of the same.
    cell: number of the one stage whose core it is; -1 for the largest.
  """
  network = program.network
  sizes = {name: 4 * layout.size for name, layout in program.layouts.items()}
  batch = sum(_bytes(spec) for spec in network.batch.specs.values())
  weights, state = sizes["weights"], sum(sizes.values()) + batch
  # From tick to tick: sums of gradients, and what is kept for backwards.
  carried = weights + program.ticks.num_slots * _length(network.kept.sizes)
  # Within one: what is recomputed; what is kept of a micro-batch, as arrays and as the
  # vector that is put into its slot or taken out; gradients of a backward, and the
  # weights as they are used; what is sent, and received, on and back.
  inside = max(
    row.recomputed + 2 * sum(map(_bytes, network.stages[row.stage].kept))
    for row in plan.stages
    if cell in (-1, row.stage)
  )
  inside += 2 * weights
  inside += 2 * (_length(network.inputs.sizes) + _length(network.gradients.sizes))
  # In the update: sums, and all that is new. If all arrays are of whole rows, libtpu
  # brings each vector as a whole into the shape of the arrays.
  update = 2 * weights + sizes["slots"]
  if _in_rows(program):
    update += 2 * weights + sizes["slots"]
  least, most = (
    state + max(carried + max(0, inside - own), update - own) for own in (ON_CORE, 0)
  )
  return CoreBytes(max(least, state), most)


def _length(sizes: Mapping[str, int]) -> int:
  return sum(number * tf.as_dtype(dtype).size for dtype, number in sizes.items())


def _in_rows(program: Program) -> bool:
  stages = program.network.weights.stages
  return all(math.prod(s) % _ROW == 0 for shapes in stages for s in shapes.values())


def _bytes(spec: tf.TensorSpec) -> int:
  return math.prod(static_shape(spec)) * spec.dtype.size
