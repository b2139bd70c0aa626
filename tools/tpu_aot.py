"""Has libtpu's own compiler compile the step for cores that are not there.

TensorFlow for CPUs makes StableHLO of the program; a process of its own gives it to
libtpu (`tools.tpu_compiler`). What the compiler needs of a core stands beside the plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

from tfpipe import hardware as hardware_lib
from tfpipe import units
from tfpipe.lazy import tf
from tfpipe.program.report import show
from tfpipe.spelling import nearest
from tfpipe.spmd import tick
from tfpipe.spmd.program import Program
from tools import tpu_plan
from tools.tpu_compiler import ENVIRONMENT
from tools.tpu_exchanges import Marked, exchanging, in_place
from tools.tpu_subject import Findings, Subject, UnavailableError

MARGIN = 0.15
"""Largest difference of the plan's memory from the compiler's, of the latter."""

_KINDS = {
  "v4": ("tpu_v4", 3),
  "v5e": ("tpu_v5e", 2),
  "v5p": ("tpu_v5p", 3),
  "v6e": ("tpu_v6e", 2),
}
"""Of each kind of TPU its name as hardware, and in how many directions chips lie."""
_NEEDED = ("jax", "libtpu")


@dataclasses.dataclass(frozen=True)
class Topology:
  """Chips to compile for.

  Attributes:
    name: as libtpu has it, `v5e:2x2`.
    hardware: name in tfpipe's table.
    num_cores: devices, as TensorFlow counts them.
  """

  name: str
  hardware: str
  num_cores: int


def topology(name: str, num_needed: int) -> Topology:
  """Reads `--topology`.

  Raises:
    ValueError: it is none, or has fewer cores than are needed.
  """
  kind, _, sizes = name.partition(":")
  if kind not in _KINDS:
    raise ValueError(
      f"--topology={name!r}: must begin with one of {', '.join(_KINDS)}, as v5e:2x2"
      f"{nearest(kind, _KINDS)}"
    )
  hardware, directions = _KINDS[kind]
  if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)" + f"{{{directions - 1}}}", sizes):
    example = "x".join("2" * directions)
    raise ValueError(
      f"--topology={name!r}: chips of {kind} lie in {directions} directions: must be "
      f"like {kind}:{example}"
    )
  count = math.prod(int(size) for size in sizes.split("x"))
  if count < num_needed:
    raise ValueError(
      f"--topology={name!r}: has {count} cores, and {num_needed} are needed"
    )
  return Topology(name, hardware, count)


def check(subject: Subject, chips: Topology, cell: int = -1) -> Findings:
  """Compiles the program, and compares it with the plan.

  Args:
    subject: what to compile.
    chips: for what.
    cell: number of the one stage whose program is compiled; -1 for that of all.

  Raises:
    UnavailableError: jax or libtpu is not installed.
    ValueError: there is no such stage, or the compiler refuses the program.
  """
  stages = len(subject.plan.cells)
  if not -1 <= cell < stages:
    raise ValueError(f"--cell={cell}: must be one of 0 to {stages - 1}")
  missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
  if missing:
    raise UnavailableError(
      f"{' and '.join(missing)} are not installed: pip install -e '.[tpu-check]'"
    )
  program = subject.program()
  text = stablehlo(program, cell)
  show(f"  StableHLO of {units.format_bytes(len(text))} goes to libtpu's compiler")
  planned = tpu_plan.core_bytes(subject.plan, program, cell)
  return judged(
    subject, chips, cell, _compiled(text, chips, program.num_replicas), planned
  )


def stablehlo(program: Program, cell: int = -1) -> str:
  """Makes what a TPU compiler is given, weights updated in place.

  Args:
    program: of the step.
    cell: as of `check`. The program of one stage is that of all without the branches
      of the others, and with the same exchanges.
  """
  state = program.specs()
  given = (tf.TensorSpec([], tf.int32), state, program.network.batch.specs)

  def step(*flat: tf.Tensor) -> list[tf.Tensor]:
    number, before, batch = tf.nest.pack_sequence_as(given, flat)
    number = number if cell < 0 else tf.constant(cell)
    found = program.step(Marked(), number, before, batch)
    after = found.pop("state")
    del found["gradients"]  # A training step hands none out.
    return tf.nest.flatten([{name: after[name] for name in state}, found])

  made = tf.function(step, autograph=False, jit_compile=True)
  with _only(cell) if cell >= 0 else contextlib.nullcontext():
    text = made.experimental_get_compiler_ir(*tf.nest.flatten(given))(stage="stablehlo")
  return in_place(exchanging(text), first=1, count=len(state))


def _only(cell: int) -> Any:
  """Leaves the branches of other stages out."""

  def switch(self: tick.Device, m: tf.Tensor, make: Any) -> tuple:
    return tf.cond(m < 0, lambda: make(self._last + 1), lambda: make(cell))

  return mock.patch.object(tick.Device, "_switch", switch)


def _compiled(text: str, chips: Topology, num_cores: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "step.mlir"
    path.write_text(text)
    command = [sys.executable, "-m", "tools.tpu_compiler", chips.name, str(num_cores)]
    ended = subprocess.run(
      [*command, str(path)],
      env=os.environ | ENVIRONMENT,
      capture_output=True,
      text=True,
      check=False,
    )
  if ended.returncode:
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("libtpu: ", "F"))] or lines[-1:]
    raise ValueError(
      f"--topology={chips.name!r}: the compiler ended with {ended.returncode}: "
      + "".join(told[:1])
    )
  return json.loads(ended.stdout.splitlines()[-1])


def judged(
  subject: Subject,
  chips: Topology,
  cell: int,
  made: dict[str, Any],
  planned: tpu_plan.CoreBytes,
) -> Findings:
  """Notes what the compiler has found, and whether it is as planned.

  Args:
    subject: what was compiled.
    chips: for what.
    cell: as of `check`.
    made: as of `tpu_compiler.compile_text`, with the fields of `tpu_memory.CoreMemory`
      and `arrays`, see there.
    planned: of a core.
  """
  found, stages = Findings(), len(subject.plan.cells)
  number = stages * subject.plan.num_replicas
  what = "the step" if cell < 0 else f"stage {cell} of the step"
  found.lines.append(
    f"compiled {what} for {number} of {chips.num_cores} cores {made['device']} "
    f"({chips.name}) in {made['secs']:.0f} s"
  )
  size, limit = units.format_bytes, hardware_lib.find(chips.hardware).memory_bytes
  code = made.get("code_bytes", 0)
  needs = made["total"] + code
  # The compiler has a little less than there is.
  found.expect(
    needs <= limit and "flops" in made,
    f"needs {size(needs)} of {size(limit)}, {size(code)} of it code",
  )
  if "flops" not in made:
    return found
  _compare(found, subject, cell, made["arrays"], planned)
  found.lines.append(
    f"small values, up to 16 KiB each, take {size(made['total'] - made['arrays'])}"
  )
  largest = ", ".join(f"{shape} {size(num)}" for num, shape in made["largest"])
  found.lines.append(
    f"arrays are {made['tiling']:.2f} times as large as their numbers, in tiles; "
    f"largest: {largest}"
  )
  found.lines.append(_flops(subject, cell, made["flops"]))
  exchanges = made["exchanges"]
  wanted = {"all-reduce", *(["collective-permute"] * (stages > 1))}
  found.expect(
    wanted <= exchanges.keys(),
    "exchanges: " + ", ".join(f"{n} {kind}" for kind, n in sorted(exchanges.items())),
  )
  return found


def _compare(
  found: Findings,
  subject: Subject,
  cell: int,
  arrays: int,
  planned: tpu_plan.CoreBytes,
) -> None:
  size, own = units.format_bytes, subject.plan.device_bytes
  nearest_planned = min(max(arrays, planned.least), planned.most)
  off = nearest_planned / arrays - 1
  found.expect(
    abs(off) <= MARGIN,
    f"arrays take {size(arrays)}; planned {size(planned.most)}, or down to "
    f"{size(planned.least)} by what is in the core's own memory: {off:+.1%} off, at "
    f"most {MARGIN:.0%}. The plan for devices with a program each: "
    f"{size(max(own) if cell < 0 else own[cell])}",
  )


def _flops(subject: Subject, cell: int, compiled: float) -> str:
  """Compares operations: of a loop the compiler counts one round, the largest."""
  costs, cells = subject.plan.costs, subject.plan.cells
  forwards = [sum(cost.flops for cost in costs[a:b]) for a, b in cells]
  # A forward, a backward of twice that, and a recomputation, which the last stage has
  # in place of the forward.
  last, again = len(cells) - 1, subject.ticks.recomputes
  ticks = [f * (3 + (again and k < last)) for k, f in enumerate(forwards)]
  planned = max(ticks) if cell < 0 else ticks[cell]
  return (
    f"operations of a tick, and of the update: {units.format_flops(compiled)}; the "
    f"plan's of a tick: {units.format_flops(planned)}"
  )
