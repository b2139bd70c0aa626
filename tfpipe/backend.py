"""What trains a planned network: its fields, and what one of the two cannot have.

`devices` runs each action on its device. `spmd` runs one program on all devices at
once, as Cloud TPU cores must; on logical CPUs it does the same without a TPU. Nothing
but this file and `program.training` knows which one a run has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfpipe.cost import LayerCost, flatten
from tfpipe.params import Params
from tfpipe.schedule import ticks
from tfpipe.schedule.schedule import Schedule
from tfpipe.spelling import nearest

BACKENDS = ("devices", "spmd")
HELP = (
  "What trains: devices, each action on its device (on those of --tpu compiled, and "
  "unverified: not run on a TPU), or spmd, one program; with --tpu alone spmd."
)
CROSSING = ("float32", "bfloat16", "int32", "int64", "bool")
"""Dtypes that one program can hand from stage to stage."""

_ALLOWED: dict[str, tuple] = {
  "pipeline.xla": (False,),
  "pipeline.devices": ("auto", "cpu"),
  "pipeline.intra_op_threads": (0,),
  "pipeline.compute_dtype": ("float32", "bfloat16"),
  "train.loss_spike": (0,),
  "train.deterministic": (False,),
}
"""What one program for all devices knows, of fields that mean more elsewhere."""

_ON_CORES: dict[str, tuple] = {
  "pipeline.xla": (True,),
  "pipeline.devices": ("auto",),
  "pipeline.intra_op_threads": (0,),
  "pipeline.compute_dtype": ("float32", "bfloat16"),
}
"""Likewise for single actions on TPU cores."""

_INTERVALS = (
  *("log_interval_steps", "save_interval_steps", "eval_interval_steps"),
  "max_steps",
)


def implied(tpu: str | None, backend: str | None) -> list[str]:
  """Gives what the flags --tpu and --backend set besides their own fields."""
  if not tpu or backend == "spmd":
    return []
  return ["pipeline.xla=True" if backend else "pipeline.backend=spmd"]


def define(p: Params) -> None:
  """Adds the fields to the Params that say how the network is cut and scheduled."""
  p.Define(
    "backend",
    "devices",
    "'devices': each action runs on its device. 'spmd': all devices run one program, "
    "the form of Cloud TPU; without `tpu`, on logical CPUs.",
  )
  p.Define(
    "tpu",
    "",
    "Cloud TPU whose cores train: its name, its address, or 'local' on a TPU VM; "
    "empty: none. With backend='spmd' evaluation runs on the host. With "
    "backend='devices' each action is a compiled function on its core: unverified, it "
    "has not run on a TPU.",
  )
  p.Define(
    "num_replicas",
    1,
    "Number R of pipelines, with backend='spmd': each, on K devices of its own, trains "
    "M / R of the micro-batches, and all make one update together.",
  )


def define_steps(p: Params) -> None:
  """Adds the field to the Params of the training loop."""
  p.Define(
    "steps_per_call",
    1,
    "Steps that the devices make in a loop of their own before the host hears of them, "
    "with pipeline.backend='spmd'. Must divide max_steps and the intervals.",
  )


def check(p: Params) -> None:
  """Checks these fields, and those that they exclude.

  Raises:
    ValueError: naming the field, its value and what is allowed.
  """
  backend, tpu, steps = p.pipeline.backend, p.pipeline.tpu, p.train.steps_per_call
  replicas = p.pipeline.num_replicas
  if backend not in BACKENDS:
    raise ValueError(
      f"pipeline.backend={backend!r}: must be one of {', '.join(BACKENDS)}"
      f"{nearest(str(backend), BACKENDS)}"
    )
  if not isinstance(tpu, str):
    raise ValueError(f"pipeline.tpu={tpu!r}: must be a name, or empty")
  counts = {"train.steps_per_call": steps, "pipeline.num_replicas": replicas}
  for field, count in counts.items():
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
      raise ValueError(f"{field}={count!r}: must be a whole number, at least 1")
  if backend == "devices":
    for field, count in counts.items():
      if count > 1:
        raise ValueError(f"{field}={count}: must be 1 with pipeline.backend='devices'")
    if tpu:
      _check_allowed(
        p, _ON_CORES, f"pipeline.backend='devices' and pipeline.tpu={tpu!r}"
      )
    return
  micro_batches_each(p.pipeline)
  _check_allowed(p, _ALLOWED, "pipeline.backend='spmd'")
  if tpu and p.pipeline.devices != "auto":
    raise ValueError(
      f"pipeline.devices={p.pipeline.devices!r}: must be 'auto' with pipeline.tpu="
      f"{tpu!r}"
    )
  for name in _INTERVALS:
    if p.train.Get(name) % steps:
      raise ValueError(
        f"train.steps_per_call={steps}: must divide train.{name}={p.train.Get(name)}"
      )


def _check_allowed(p: Params, fields: dict[str, tuple], what: str) -> None:
  for field, allowed in fields.items():
    value = p.Get(field)
    if value not in allowed:
      raise ValueError(
        f"{field}={value!r}: must be {' or '.join(map(repr, allowed))} with {what}"
      )


def micro_batches_each(pipe: Params) -> int:
  """Gives the number of micro-batches of a mini-batch that each pipeline trains.

  Raises:
    ValueError: they do not get equally many.
  """
  replicas, number = pipe.num_replicas, pipe.num_micro_batches
  if number % replicas:
    raise ValueError(
      f"pipeline.num_replicas={replicas}: must divide pipeline.num_micro_batches="
      f"{number}, which the pipelines share"
    )
  return number // replicas


def check_schedule(pipe: Params, schedule: Schedule) -> None:
  """Checks that the back end can run a schedule.

  Raises:
    ValueError: its ticks do not line up.
  """
  if pipe.backend == "spmd":
    ticks.table(schedule)


def check_plan(
  p: Params,
  schedule: Schedule,
  cells: Sequence[tuple[int, int]],
  costs: Sequence[LayerCost],
) -> list[str]:
  """Checks that the back end can run what was planned.

  Args:
    p: of the run, checked by `check`.
    schedule: of the plan, checked by `check_schedule`.
    cells: likewise.
    costs: likewise.

  Returns:
    what a reader should know of the prediction.

  Raises:
    ValueError: naming what it cannot run.
  """
  if p.pipeline.backend == "devices":
    if not p.pipeline.tpu:
      return []
    return [
      "pipeline.backend=devices on the cores of a TPU is unverified: it has not run on "
      "one"
    ]
  table = ticks.table(schedule)
  for stage, (_, end) in enumerate(cells[:-1]):
    for spec in flatten(costs[end - 1].out_shapes):
      if spec.dtype not in CROSSING:
        raise ValueError(
          f"layer {costs[end - 1].name!r} hands {spec.dtype} from stage {stage} to the "
          f"next: must be one of {', '.join(CROSSING)} with pipeline.backend='spmd'"
        )
  _check_input(p.input.Instantiate(), p.train.steps_per_call)
  return [
    f"with pipeline.backend=spmd all devices meet at the end of each of "
    f"{table.num_ticks} ticks, in which a stage does a forward and a backward at most; "
    "times are predicted as if none waited for that"
  ]


def _check_input(source: Any, steps: int) -> None:
  shapes = len(source.all_specs())
  if shapes > 1:
    raise ValueError(
      f"input gives batches of {shapes} shapes: must be one with "
      "pipeline.backend='spmd'"
    )
  if not source.params.repeat and source.steps_per_epoch % steps:
    raise ValueError(
      f"train.steps_per_call={steps}: must divide the {source.steps_per_epoch} "
      "mini-batches of the data, with input.repeat=False"
    )
