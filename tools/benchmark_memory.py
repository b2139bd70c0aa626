"""The section of `benchmark` that measures memory: against the plan, and torchgpipe's.

Memory is counted as in `live_bytes`, in processes of two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfpipe.units import format_bytes
from tools.benchmark_peers import installed
from tools.benchmark_runs import PARTIAL, Bench, Figure, decoder

_STAGES, _MICRO_BATCHES = 4, 8
# 512 tokens in a micro-batch: a stage's activations are several times its weights.
_ROWS, _LENGTH, _LAYERS = 4, 128, 16
_LIMIT = 512 * 2**20
_SCHEDULES = (("1f1b", "none"), ("gpipe", "cell"))


def memory(bench: Bench) -> list[Figure]:
  """The plan's bytes of a stage, and the largest Transformer within a limit."""
  figures = []
  for schedule, remat in _SCHEDULES:
    figures += _stages(bench, schedule, remat)
  if installed("torch", "torchgpipe"):
    figures.append(_largest(bench))
  return figures


def _stages(bench: Bench, schedule: str, remat: str) -> list[Figure]:
  """How far the bytes of the first and the last stage are from the plan's.

  They are those of a process in which only the blocks of this stage compute and all
  others hand their input on, less those of one in which none does.
  """
  part = _LAYERS // _STAGES

  def run(first: int, end: int) -> dict[str, Any]:
    return bench.live_bytes(
      f"memory {schedule} {remat} {first}:{end}",
      _decoder(
        _LAYERS,
        schedule,
        experiment=PARTIAL,
        remat=remat,
        task__first_layer=first,
        task__end_layer=end,
      ),
    )

  nothing, figures = run(0, 0), []
  for stage in (0, _STAGES - 1):
    own = run(stage * part, (stage + 1) * part)
    measured, planned = (
      own[name] - nothing[name] for name in ("live_bytes", "planned")
    )
    detail = f"{format_bytes(planned)}, {format_bytes(measured)}"
    name = f"memory off the plan, {schedule}, {remat}, stage {stage}"
    figures.append(Figure(name, abs(measured / planned - 1), 0.1, True, detail))
  return figures


def _decoder(layers: int, schedule: str, **changes: Any) -> list[str]:
  """Gives the command for stages of as many blocks each."""
  part = layers // _STAGES
  return decoder(
    _STAGES,
    _MICRO_BATCHES,
    layers=layers,
    rows=_ROWS,
    length=_LENGTH,
    pipeline__schedule=schedule,
    pipeline__lengths=(1 + part, part, part, part + 2),
    **changes,
  )


def _largest(bench: Bench) -> Figure:
  """How many blocks fit in the limit, against torchgpipe; both compute again."""

  def ours(layers: int) -> int:
    command = _decoder(layers, "1f1b", remat="layer")
    return bench.live_bytes(f"L={layers}, remat", command)["live_bytes"]

  def torch(layers: int) -> int:
    part = layers // _STAGES
    sizes = (256, layers, _LENGTH, _ROWS * _MICRO_BATCHES, 128, _MICRO_BATCHES)
    lengths = (1 + part, part, part, part + 1)
    command = ["tools.benchmark_torch", "--how=torchgpipe"]
    command += [f"--sizes={','.join(map(str, sizes))}"]
    command += [f"--lengths={','.join(map(str, lengths))}"]
    return bench.live_bytes(f"torch L={layers}", command)["live_bytes"]

  own, other = (largest(measure, _LIMIT, _STAGES) for measure in (ours, torch))
  detail = f"{own} blocks, {other}, in {format_bytes(_LIMIT)}"
  return Figure("blocks over torchgpipe's", own / other, 1.2, False, detail)


def largest(measure: Callable[[int], float], limit: float, step: int) -> int:
  """Finds the largest multiple of a step that stays within a limit.

  What is measured must grow, about like a line: each next try is where the line
  through the two nearest would meet the limit.

  Args:
    measure: what a number takes.
    limit: what it may take.
    step: what the number is a multiple of.

  Raises:
    ValueError: not even the step itself stays within the limit.
  """
  found = {n: measure(n) for n in (step, 4 * step)}
  if found[step] > limit:
    raise ValueError(f"{step} takes {found[step]:g}, more than {limit:g}")
  while True:
    fits = max(n for n, size in found.items() if size <= limit)
    breaks = min((n for n, size in found.items() if size > limit), default=None)
    if breaks == fits + step:
      return fits
    left, right = sorted(sorted(found, key=lambda n: abs(found[n] - limit))[:2])
    slope = max((found[right] - found[left]) / (right - left), 1e-9)
    guess = left + (limit - found[left]) / slope
    tried = max(fits + step, int(guess // step) * step)
    if breaks is not None:
      tried = min(tried, breaks - step)
    found[tried] = measure(tried)
