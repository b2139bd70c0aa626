"""What a core needs for the one program, from the plan of a device of its own.

The plan knows stages, each as large as it is. In the program of all stages what a core
keeps are vectors of the longest stage's length, and a compiler copies them whole: into
the shapes of the weights in them, and out of these.
"""

from __future__ import annotations

import math

from tfpipe.lazy import tf
from tfpipe.plan import Plan
from tfpipe.spmd.program import Program
from tfpipe.structure import static_shape


def core_bytes(plan: Plan, program: Program, cell: int = -1) -> int:
  """Returns the most bytes that a core has at once.

  Args:
    plan: of the run.
    program: of the same.
    cell: number of the one stage whose core it is; -1 for the largest.
  """
  network = program.network
  weights, slots, fixed = (
    4 * program.layouts[name].size for name in ("weights", "slots", "fixed")
  )
  batch = sum(_bytes(spec) for spec in network.batch.values())
  # Within the ticks: sums of gradients, those of a backward, and the weights as they
  # are used; inputs that are kept, and what is sent and received.
  border = sum(n * tf.as_dtype(t).size for t, n in network.inputs.sizes.items())
  stages = [row for row in plan.stages if cell in (-1, row.stage)]
  inside = max(row.recomputed or row.stash for row in stages)
  ticks = 3 * weights + (program.ticks.num_slots + 4) * border + inside
  # In the update: all of it as vectors, in the shapes of the weights, and new.
  update = 4 * weights + 2 * slots
  return weights + slots + fixed + batch + max(ticks, update)


def _bytes(spec: tf.TensorSpec) -> int:
  return math.prod(static_shape(spec)) * spec.dtype.size
