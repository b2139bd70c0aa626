"""Costs of a network, layer by layer, as a plan would ask for them."""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.nested_map import NestedMap
from tfpipe.task import Task


def network_costs(task: Task, inputs: Sequence[ArraySpec]) -> list[LayerCost]:
  """Hands every layer the out_shapes of the one before; `label` and `weight` beside."""
  batch = inputs[0].shape[0]
  side = NestedMap(label=ArraySpec((batch,), "int32"), weight=ArraySpec((batch,)))
  costs, given = [], tuple(inputs)
  for params in task.Layers():
    extra = [side] if params.cls.SIDE_INPUTS else []
    costs.append(params.cls.FPropMeta(params, *given, *extra))
    out = costs[-1].out_shapes
    given = out if isinstance(out, tuple) else (out,)
  return costs
