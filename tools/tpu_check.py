r"""Checks without a TPU what Cloud TPU cores would run of an experiment.

  python -m tools.tpu_check --model=lm.shakespeare.Char --num_partitions=4 \
    --num_micro_batches=8 --stage=virtual

The training step is one program for all cores, see `tfpipe.spmd`. Stages, cheap first:

  graph    a TPUStrategy for a described topology builds it, with the loop of
           train.steps_per_call: each layer, forward and backward, is in the branch of
           its stage and nowhere else
  hlo      XLA compiles it, for the CPU: no product or convolution is outside a stage,
           recomputation is still there, no shape is dynamic
  virtual  it runs on virtual CPU devices and does what training on one device does
  aot      libtpu's own compiler compiles it for the chips of --topology (v4:2x2x1,
           v5e:2x2, v5p:2x2x1, v6e:2x2, or more): memory of a core beside the plan's,
           whether it fits, operations, exchanges. --cell=2 compiles stage 2 alone.
           Needs `pip install -e '.[tpu-check]'`

That is --form=spmd. Two others are unverified, a device for each stage of any schedule:

  devices          graph: each action's compiled function is on its /device:TPU:k
  replicated_core  graph: within one replica of a TPUStrategy, each is on its logical
                   core, /device:TPU_REPLICATED_CORE:k; hlo: each product still is. For
                   StreamExecutor runtimes of v2 to v4; to libtpu 0.0.31 and newer it is
                   UNIMPLEMENTED

Nothing here runs on a TPU. Ends with 0 if all is as it must be, 1 if not or if it is
refused, and 3 if a stage cannot be run here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from absl import app, flags

from tfpipe import error_text
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.program import quiet, refusal, streams
from tfpipe.spelling import nearest
from tfpipe.trainer import FLAGS, model_params
from tools import tpu_placed, tpu_subject
from tools.tpu_placed import Placed
from tools.tpu_subject import Findings, Subject, UnavailableError

# Compiled in several parts at once, a large program has hung for ever (TF 2.21, CPU).
_ALONE = "--xla_cpu_parallel_codegen_split_count=1"
if _ALONE not in os.environ.get("XLA_FLAGS", ""):
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ALONE}".strip()

# Flags of the trainer that mean the same here; its others mean nothing.
SHARED = ("model", "num_partitions", "num_micro_batches", "schedule", "remat", "set")
for _name in SHARED:
  flags.declare_key_flag(_name)

OWN = ("stage", "form", "topology", "cell")
STAGES = ("graph", "hlo", "virtual", "aot")
FORMS = {"spmd": STAGES, "devices": ("graph",), "replicated_core": ("graph", "hlo")}
"""What the step is made as, and the stages that look at that."""
UNAVAILABLE = 3
"""Exit code of a stage that cannot be run here."""

_STAGE = flags.DEFINE_string("stage", None, f"What to check: {', '.join(STAGES)}.")
_FORM = flags.DEFINE_string(
  "form", "spmd", f"What the step is made as: {', '.join(FORMS)}."
)
_TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x2", "With --stage=aot: for what.")
_CELL = flags.DEFINE_integer("cell", None, "With --stage=aot: one stage by number.")


def _check_flags(argv: Sequence[str]) -> None:
  """Refuses flags that are missing, bad, or without effect."""
  if len(argv) > 1:
    raise ValueError(f"unexpected arguments: {' '.join(argv[1:])}")
  if not FLAGS.model:
    raise ValueError("--model is missing; it names an experiment")
  for flag in FLAGS.get_flags_for_module("tfpipe.trainer"):
    if flag.present and flag.name not in SHARED:
      known = ", --".join(sorted({*SHARED, *OWN}))
      raise ValueError(f"--{flag.name} has no effect here; flags are --{known}")
  if _STAGE.value not in STAGES:
    found = "is missing" if _STAGE.value is None else f"= {_STAGE.value!r}"
    raise ValueError(
      f"--stage {found}: must be one of {', '.join(STAGES)}"
      f"{nearest(_STAGE.value or '', STAGES)}"
    )
  if _FORM.value not in FORMS:
    raise ValueError(
      f"--form = {_FORM.value!r}: must be one of {', '.join(FORMS)}"
      f"{nearest(_FORM.value, FORMS)}"
    )
  if _STAGE.value not in FORMS[_FORM.value]:
    raise ValueError(
      f"--stage = {_STAGE.value!r}: must be {' or '.join(FORMS[_FORM.value])} with "
      f"--form={_FORM.value}"
    )
  for flag in (_TOPOLOGY, _CELL):
    if flag.present and _STAGE.value != "aot":
      raise ValueError(f"--{flag.name} has no effect with --stage={_STAGE.value}")


def _params() -> Params:
  names = ("num_partitions", "num_micro_batches", "schedule", "remat")
  given = [
    f"pipeline.{n}={FLAGS[n].value}" for n in names if FLAGS[n].value is not None
  ]
  return model_params(FLAGS.model, [*FLAGS.set, *given])


def _checked(subject: Subject | Placed) -> Findings:
  """Checks; a stage's module is loaded for that stage only."""
  number = len(subject.plan.cells) * subject.plan.num_replicas
  if isinstance(subject, Placed):
    _start(number)
    return tpu_placed.check(subject, str(_STAGE.value))
  stage = importlib.import_module(f"tools.tpu_{_STAGE.value}")
  if _STAGE.value != "aot":
    _start(number)
    return stage.check(subject)
  cell = -1 if _CELL.value is None else _CELL.value
  chips = stage.topology(_TOPOLOGY.value, number)
  _start(number)
  return stage.check(subject, chips, cell)


def _start(number: int) -> None:
  """Starts TensorFlow, with logical CPUs for so many devices."""
  with quiet.start_up():
    # An only one would have no name of its own.
    placement.resolve("cpu", max(number, 2))


def _subject() -> Subject | Placed:
  if _FORM.value == "spmd":
    return tpu_subject.make(_params())
  return tpu_placed.make(_params(), _FORM.value)


def _run(subject: Subject | Placed) -> None:
  print(subject.title(), flush=True)
  steps = subject.params.train.steps_per_call
  if steps > 1 and _STAGE.value != "graph":
    print(f"  of the {steps} steps of a call, one")
  try:
    found = _checked(subject)
  except UnavailableError as error:
    print(f"stage {_STAGE.value}: NOT RUN: {error}; nothing has been compiled")
    sys.exit(UNAVAILABLE)
  for line in found.lines:
    print(f"  {line}")
  print(f"stage {_STAGE.value}: {'failed' if found.wrong else 'passed'}, not on a TPU")
  if found.wrong:
    sys.exit(1)


def main(argv: Sequence[str]) -> None:
  """Checks what the flags say, and prints what is found."""
  try:
    _check_flags(argv)
    _run(_subject())
  except error_text.REFUSALS as error:
    sys.exit(f"error: {refusal.text(error)}")


if __name__ == "__main__":
  streams.outlive_readers()
  app.run(main)
