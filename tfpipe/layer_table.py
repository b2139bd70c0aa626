"""The layers of a plan, by stage, as a table."""

from __future__ import annotations

from tfpipe import units
from tfpipe.plan import Plan

__all__ = ["rows"]


def rows(plan: Plan) -> list[list[str]]:
  """Returns names of columns, and a row for each layer, of one micro-batch."""
  found = [
    ["cell", "layer", "weights", "bytes", "FLOPs", "share", "activations", "border"]
  ]
  total = sum(cost.flops for cost in plan.costs) or 1
  for stage, (start, end) in enumerate(plan.cells):
    for cost in plan.costs[start:end]:
      found.append(
        [
          str(stage),
          cost.name,
          units.format_count(cost.param_count),
          units.format_bytes(cost.param_bytes),
          units.format_flops(cost.flops),
          f"{cost.flops / total:.1%}",
          units.format_bytes(cost.activation_bytes),
          units.format_bytes(cost.border_bytes),
        ]
      )
  return found
