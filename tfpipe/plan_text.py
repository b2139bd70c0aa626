"""The predicted memory and step of a plan, as text."""

from __future__ import annotations

from tfpipe.memory import StageMemory
from tfpipe.plan import Plan, align
from tfpipe.units import format_bytes, format_secs

__all__ = ["details", "memory_line"]

_KINDS = ("weights", "slots", "averages", "accumulators", "new_gradients", "batch")


def memory_line(plan: Plan) -> str:
  """Says in a line which device needs most, for what, and what remat saves."""
  device = max(range(len(plan.device_bytes)), key=plan.device_bytes.__getitem__)
  same = plan.same_devices
  rows = [row for row in plan.stages if same[row.device] == same[device]]
  parts = [
    (kind.replace("_", " "), sum(getattr(row, kind) for row in rows)) for kind in _KINDS
  ]
  parts.append(("activations", sum(row.activations for row in rows)))
  listed = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in parts if size)
  need = format_bytes(plan.device_bytes[device])
  return f"memory: device {device} needs most, {need} ({listed}); {_saving(plan)}"


def _saving(plan: Plan) -> str:
  (remat, kept), (other, otherwise) = plan.activations.items()
  if remat == "none":
    return (
      f"remat=none keeps at most {format_bytes(kept)} of activations on a device, "
      f"remat={other} would keep {format_bytes(otherwise)}"
    )
  return (
    f"remat={remat} keeps at most {format_bytes(kept)} of activations on a device "
    f"instead of {format_bytes(otherwise)}"
  )


def details(plan: Plan) -> str:
  """Draws time and memory of each stage, a line for each copy, and what it rests on.

  `time` is that of F, R, B and W of a micro-batch; `sums` are of gradients, `new`
  what a backward adds to them; `stash` is
  what forwards have kept when the device holds most, and `again` what recomputation has
  brought by then; `for W` are the gradients that B has left for W. The last columns are
  for the whole device.
  """
  kinds = [kind for kind in _KINDS if any(getattr(r, kind) for r in plan.stages)]
  kinds += ["stash", "recomputed"]
  kinds += ["gradients"] if any(row.gradients for row in plan.stages) else []
  names = {
    "accumulators": "sums",
    "new_gradients": "new",
    "recomputed": "again",
    "gradients": "for W",
  }
  rows = [
    ["device", "cell", *(names.get(kind, kind) for kind in kinds), "device total"]
  ]
  if plan.in_seconds:
    rows[0].insert(2, "time")
  if plan.hardware:
    rows[0].append("fits")
  last = {row.device: row for row in plan.stages}
  for row in plan.stages:
    cells = [str(row.device), str(row.stage)]
    if plan.in_seconds:
      cells.append(format_secs(_secs(plan, row)))
    cells += [format_bytes(getattr(row, kind)) for kind in kinds]
    cells += (
      _of_device(plan, row)
      if last[row.device] is row
      else [""] * (1 + bool(plan.hardware))
    )
    rows.append(cells)
  return "\n".join([align(rows), *(f"note: {note}" for note in plan.notes)])


def _of_device(plan: Plan, row: StageMemory) -> list[str]:
  total = [format_bytes(plan.device_bytes[row.device])]
  if plan.hardware:
    total.append("NO" if row.device in plan.too_small else "yes")
  return total


def _secs(plan: Plan, row: StageMemory) -> float:
  times = plan.times
  kinds = {action.kind for action in plan.schedule.actions[row.device]} - {"U"}
  return float(sum(times.by_kind[kind][row.stage] for kind in sorted(kinds)))
