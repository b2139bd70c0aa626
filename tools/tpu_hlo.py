"""Has XLA compile the program made for TPU cores, for the CPU, and looks at the result.

XLA for the CPU has no exchange between devices; a value that it knows nothing of stands
for what arrives. Otherwise it is the same program.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from tfpipe import schedule
from tfpipe.lazy import tf
from tfpipe.schedule import ticks as ticks_lib
from tfpipe.spmd.collectives import Alone
from tfpipe.spmd.program import Program
from tfpipe.spmd.tick import Carry, Device
from tfpipe.structure import static_shape
from tools import hlo_text
from tools.tpu_subject import Findings, Subject

_FEW = 2
"""Micro-batches in a look at what one core does: for all, it takes long to compile."""


def check(subject: Subject) -> Findings:
  """Compiles the program of all cores, then what each core does of it."""
  found = Findings()
  program = subject.program()
  text = compiled(lambda *args: _step(program, *args), _step_args(program), "hlo")
  _check_program(found, hlo_text.Program(text), program)
  stages = program.network.sizes.stages
  few = _with_few(subject)
  for stage in range(stages):
    _check_core(found, few, stage)
  return found


def compiled(function: Callable, args: Any, stage: str) -> str:
  """Compiles a function of a nest of arrays with XLA; gives HLO as text.

  Args:
    function: to be compiled.
    args: what it is called with.
    stage: `hlo` for what XLA gets, `optimized_hlo` for what it makes of it.
  """
  tensors = tf.nest.map_structure(tf.constant, args)

  def flat(*given: tf.Tensor) -> list[tf.Tensor]:
    return tf.nest.flatten(function(*tf.nest.pack_sequence_as(tensors, given)))

  made = tf.function(flat, autograph=False, jit_compile=True)
  return made.experimental_get_compiler_ir(*tf.nest.flatten(tensors))(stage=stage)


def _step_args(program: Program) -> tuple:
  """Gives arguments of a step: number of the core, state, batch, unknown numbers."""
  batch = {
    name: np.zeros(static_shape(spec), spec.dtype.as_numpy_dtype)
    for name, spec in program.network.batch.specs.items()
  }
  # As many as there can be exchanges: in a tick two of each dtype, and a few more.
  count = 8 * program.ticks.num_ticks + 16
  unknown = np.zeros([count], np.float32)
  state = {
    name: np.zeros(static_shape(spec), spec.dtype.as_numpy_dtype)
    for name, spec in program.specs().items()
  }
  return np.zeros([], np.int32), state, batch, unknown


def _step(
  program: Program, replica: Any, state: Any, batch: Any, unknown: Any, core: int = -1
) -> tuple:
  """Builds a step; that of one core, without a loop, if its number is given."""
  number, alone = replica if core < 0 else tf.constant(core), Alone(unknown)
  result = program.step(alone, number, state, batch, unrolled=core >= 0)
  # What is sent within a loop stays there.
  return result, alone.sent if core >= 0 else []


def _check_program(
  found: Findings, compiled: hlo_text.Program, program: Program
) -> None:
  """Notes where products are, and whether shapes are known."""
  stages = program.network.sizes.stages
  products = compiled.products()
  outside = [line for place, line in products if place.branch < 0]
  found.expect(
    not outside,
    f"{len(products)} products and convolutions, {len(outside)} outside of a stage"
    + _some(outside),
  )
  # Others, such as one that measures norms or not, hold no products.
  branches = {p.conditional: p.num_branches for p, _ in products if p.branch >= 0}
  numbers = sorted(set(branches.values()))
  found.expect(
    set(numbers) <= {stages, stages + 1} and bool(branches),
    f"{len(branches)} conditionals hold products, of {numbers} branches: one for each "
    "stage, and one for none",
  )
  dynamic = compiled.dynamic()
  found.expect(not dynamic, f"{len(dynamic)} dynamic shapes" + _some(dynamic))
  counts = Counter(place for place, _ in products)
  kinds = ("forward", "backward")
  numbers = sorted({place.conditional for place in counts})
  for stage in range(stages):
    own = [
      counts[p]
      for n in numbers
      for p in counts
      if (p.conditional, p.branch) == (n, stage)
    ]
    expected = [_alone(program, kind, stage, "hlo") for kind in kinds]
    expected = [number for number in expected if number]
    found.expect(
      own == expected,
      f"stage {stage}: products in its branches {own}, in its cell {expected}",
    )


def _some(lines: Sequence[str]) -> str:
  return "".join(f"\n    {line[:120]}" for line in lines[:3])


def _alone(program: Program, kind: str, stage: int, form: str) -> int:
  """Counts the products of a stage's forward or backward, compiled by itself."""

  def work(_: tf.Tensor, state: Any, batch: Any, unknown: tf.Tensor) -> Any:
    ticks = program.ticks
    number = tf.constant(stage)
    device = Device(program.network, ticks, number, number * 0, state, batch)
    carry = _unknown(device.first(), unknown)
    branch = getattr(device, kind)(tf.cast(unknown[1], tf.int32), carry)
    # Within a branch, as there: what no one needs of it is not left out.
    return tf.switch_case(tf.cast(unknown[2], tf.int32), [lambda: branch(stage)] * 2)

  text = compiled(work, _step_args(program), form)
  products = hlo_text.Program(text).products()
  return sum(place.branch == 0 for place, _ in products)


def _unknown(carry: Carry, unknown: tf.Tensor) -> Carry:
  """Lets nothing be known of what a device has before a tick."""
  number = tf.unstack(unknown)[0]
  return tf.nest.map_structure(lambda t: t + tf.cast(number, t.dtype), carry)


def _with_few(subject: Subject) -> Program:
  """Makes the program for few micro-batches, of the same size."""
  stages, name = len(subject.plan.cells), subject.params.pipeline.schedule
  number = min(_FEW, subject.plan.schedule.num_micro_batches)
  made = schedule.make(name, stages, number, subject.ticks.recomputes)
  few = dataclasses.replace(subject, ticks=ticks_lib.table(made))
  return few.program(number)


def _check_core(found: Findings, program: Program, stage: int) -> None:
  """Notes whether a core's optimized program recomputes all that it should."""
  known = Device.first

  def core(*args: Any) -> tuple:
    # Written out, the first tick begins with zeros, of which the loop knows nothing. By
    # them a compiler sees that what is kept of a forward is what the forward was given.
    with mock.patch.object(Device, "first", lambda own: _unknown(known(own), args[-1])):
      return _step(program, *args, core=stage)

  text = compiled(core, _step_args(program), "optimized_hlo")
  total = len(hlo_text.Program(text).products())
  parts = [
    _alone(program, kind, stage, "optimized_hlo") for kind in ("forward", "backward")
  ]
  number = program.network.sizes.micro_batches
  found.expect(
    total == number * sum(parts),
    f"core {stage}, optimized, {number} micro-batches: {total} products; with all "
    f"recomputation {number}·({parts[0]} + {parts[1]}) = {number * sum(parts)}",
  )
