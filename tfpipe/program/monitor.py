"""What can be seen of a training besides its loss: rates, norms, memory, samples.

All of it goes to event files for TensorBoard, below the run's folder: `train` and
`eval`, and in the folder itself what the run was made with.
"""

from __future__ import annotations

import math
import pathlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfpipe import hardware as hardware_lib
from tfpipe import params_text, registry
from tfpipe.cost import ArraySpec
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program import samples
from tfpipe.program.event_file import EventFile, HParam
from tfpipe.program.run import Run
from tfpipe.timeline import Timeline

# A gradient takes two products for each one of the forward.
_PASSES = 3
# Of every run, so that runs have the same columns; what differs from the experiment
# is added.
_HPARAMS = (
  "name",
  "input.batch_size",
  "pipeline.num_micro_batches",
  "pipeline.num_partitions",
  "pipeline.remat",
  "pipeline.schedule",
  "task.learner.learning_rate",
  "train.max_steps",
  "train.seed",
)


class Monitor:
  """Measures a training, and writes what is measured where TensorBoard finds it."""

  def __init__(self, run: Run, logdir: pathlib.Path) -> None:
    self._run = run
    self._files = {kind: EventFile(logdir / kind) for kind in ("train", "eval")}
    self._root = EventFile(logdir)
    self._planned_tokens = _planned_tokens(run.input.specs())
    self._varies = len(run.input.all_specs()) > 1
    self._restart()

  def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches, and measures how long each is waited for."""
    while True:
      asked = time.monotonic()
      batch = next(batches, None)
      self._waited += time.monotonic() - asked
      if batch is None:
        return
      steps = self._run.params.train.steps_per_call
      self._waits += steps
      # To count them, nothing need come back from devices.
      tokens = _num_tokens(batch) if self._varies else self._planned_tokens
      self._tokens += steps * tokens
      yield batch

  def start(self, batch: Mapping[str, Any]) -> dict[str, float]:
    """Writes what is known before the first step, and samples of its mini-batch.

    The time until now, in which input and step are prepared, is not counted as waiting.

    Returns:
      what is predicted, by name.
    """
    run, file = self._run, self._files["train"]
    self._restart()
    file.start(run.step + 1)
    self._root.hparams(hparams(run.params))
    for name, pictures in samples.images(batch).items():
      file.images(run.step, f"input/{name}", pictures)
    for name, texts in samples.texts(run.input, batch).items():
      file.texts(run.step, f"input/{name}", texts)
    values: dict[str, float] = {"pipeline/bubble_predicted": run.plan.bubble}
    if run.plan.step_secs is not None:
      values["step_secs_predicted"] = run.plan.step_secs
    for device, size in enumerate(run.plan.device_bytes):
      values[f"memory/predicted/device_{device}"] = size
    file.scalars(run.step, values)
    return values

  def values(
    self, update: Mapping[str, Any], examples_per_sec: float
  ) -> dict[str, float]:
    """Gives what is logged besides metrics: norms, rates, waiting, memory.

    Args:
      update: what `Learner.apply` returned.
      examples_per_sec: since the last call; 0 if not known.
    """
    run = self._run
    values: dict[str, float] = {}
    if norm := float(update["param_norm"]):
      values["param_norm"] = norm
      values["update_ratio"] = float(update["update_norm"]) / norm
    values["skips"] = int(update["consecutive_skips"])
    if self._waits:
      values["data_wait_secs"] = self._waited / self._waits
    if self._waits and examples_per_sec:
      tokens = self._tokens / self._waits
      planned = tokens == self._planned_tokens
      values |= rates(
        run.params, run.plan, examples_per_sec, tokens, as_planned=planned
      )
    self._restart()
    return values | _memory(run.devices)

  def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
    """Writes a point of each curve of `train` or `eval`."""
    points = {_tag(name): value for name, value in values.items()}
    if kind == "train":
      # A line to see the measured one beside.
      points["pipeline/bubble_predicted"] = self._run.plan.bubble
    self._files[kind].scalars(step, points)

  def profiled(self, step: int, measured: Timeline) -> dict[str, float]:
    """Writes what a measured step has shown, and gives it by name."""
    values = {"pipeline/bubble_measured": measured.bubble}
    for device, busy in enumerate(measured.busy):
      share = float(busy / measured.makespan) if measured.makespan else 0.0
      values[f"pipeline/idle/device_{device}"] = 1 - share
    self._files["train"].scalars(step, values)
    return values

  def _restart(self) -> None:
    """Begins to measure anew."""
    self._waited, self._waits, self._tokens = 0.0, 0, 0


def rates(
  params: Params,
  plan: Plan,
  examples_per_sec: float,
  tokens: float = 0.0,
  *,
  as_planned: bool = True,
) -> dict[str, float]:
  """Gives the speed of training in all units that have a meaning for the run.

  Model FLOPs are those of matrix products and convolutions, three times the forward's,
  recomputation not counted; MFU is their share of what the devices could do ("model
  FLOPs utilization", PaLM, arXiv:2204.02311, appendix B).

  Args:
    params: of the run; `train.hardware` says what the devices could do.
    plan: of the run.
    examples_per_sec: above 0.
    tokens: of a mini-batch, padding included; 0 if it has none.
    as_planned: whether mini-batches had the shape that was planned for; the FLOPs of
      others are not known.
  """
  batch_size = params.input.batch_size
  steps_per_sec = examples_per_sec / batch_size
  values = {"step_secs": 1 / steps_per_sec}
  if tokens:
    values["tokens/s"] = tokens * steps_per_sec
  flops = _PASSES * sum(cost.matmul_flops for cost in plan.costs)
  flops *= params.pipeline.num_micro_batches
  if not flops or not as_planned:
    return values
  values["flops/s"] = flops * steps_per_sec
  if params.train.hardware:
    devices = len(set(plan.same_devices) or range(plan.schedule.num_devices))
    devices *= plan.num_replicas
    peak = hardware_lib.find(params.train.hardware).flops_per_sec
    values["mfu"] = values["flops/s"] / (devices * peak)
  return values


def hparams(params: Params) -> dict[str, HParam]:
  """Gives what tells a run from others: the main Params and those that were changed."""
  own = params_text.read(params.ToText())
  usual = params_text.read(registry.Get(params.name)().Model().ToText())
  names = [n for n in own if n in _HPARAMS or own[n] != usual.get(n)]
  return {name: _hparam(params.Get(name)) for name in names}


def _hparam(value: Any) -> HParam:
  if isinstance(value, (bool, int, float)):
    return value
  return value if isinstance(value, str) else repr(value)


def _memory(devices: tuple[str, ...]) -> dict[str, float]:
  """Gives the most bytes so far: of the process, and of devices that count them."""
  unit = 1 if sys.platform == "darwin" else 1024
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  found: dict[str, float] = {"memory/host": most}
  for device, name in enumerate(devices):
    if "CPU" not in name.upper():
      info = tf.config.experimental.get_memory_info(name)
      found[f"memory/device_{device}"] = info["peak"]
  return found


def _num_tokens(batch: Mapping[str, Any]) -> int:
  """Counts the ids of the first field that has rows of them."""
  sizes = (math.prod(t.shape) for t in batch.values() if samples.is_text(t))
  return next(sizes, 0)


def _planned_tokens(specs: Mapping[str, ArraySpec]) -> int:
  """Counts them as an input announces them."""
  texts = (s for s in specs.values() if len(s.shape) == 2 and "int" in s.dtype)
  return next((spec.size for spec in texts), 0)


def _tag(name: str) -> str:
  """A slash would make a group of it."""
  return name.replace("/s", "_per_sec") if name.endswith("/s") else name
