"""What `--mode=inspect` prints of a run, without TensorFlow."""

from __future__ import annotations

import math

from tfpipe import plan as plan_lib
from tfpipe import registry
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program.report import differences
from tfpipe.schedule import text
from tfpipe.units import format_bytes, format_count

_BYTES = 4  # weights are float32


def inspect(what: str, params: Params, plan: Plan) -> str:
  """Gives the text.

  Args:
    what: `params`, all of them; `changed`, those that are not as their class defines
      them; `diff:EXPERIMENT`, how they differ from another's; `variables`, by layer and
      stage; `schedule`, as CSV.
    params: of the run.
    plan: made from them.

  Raises:
    LookupError: there is no such other experiment.
  """
  if what == "variables":
    return variables(params, plan)
  if what == "schedule":
    return text.to_csv(plan.schedule).rstrip("\n")
  if what.startswith("diff:"):
    other = registry.Get(what.removeprefix("diff:"))().Model()
    changes = differences(other.ToText(), params.ToText())
    return changes or f"nothing differs from {other.name}"
  return params.ToText(changed_only=what == "changed")


def variables(params: Params, plan: Plan) -> str:
  """Draws a line for each variable: its stage, layer, shape and size.

  Optimizer slots and averages, which go with each weight that is trained, are not
  listed; the plan counts them.
  """
  layers = params.task.Instantiate().Layers()
  rows = [["stage", "layer", "variable", "shape", "numbers", "bytes", ""]]
  total = 0
  for stage, (start, end) in enumerate(plan.cells):
    for layer in layers[start:end]:
      for path, weight in layer.Instantiate().weights().items():
        shape = "x".join(map(str, weight.shape)) or "scalar"
        row = [str(stage), layer.name, path, shape]
        if weight.tied_to:
          rows.append([*row, "", "", f"is {weight.tied_to}"])
          continue
        size = math.prod(weight.shape)
        total += size
        note = "" if weight.trainable else "not trained"
        rows.append([*row, format_count(size), format_bytes(_BYTES * size), note])
  summary = f"{format_count(total)} numbers, {format_bytes(_BYTES * total)}"
  return f"{plan_lib.align(rows)}\n{summary}"
