"""Calls of the devices that make several steps: what each step of them had and gave."""

from __future__ import annotations

from typing import Any

from tfpipe.lazy import tf


def parts(values: Any, number: int) -> list[Any]:
  """Takes a nest of tensors apart along the axis of its steps.

  Args:
    values: batches of a call, or what it gives.
    number: of its steps; with 1 there is no such axis.
  """
  if number == 1:
    return [values]
  values = dict(values)
  return [
    tf.nest.map_structure(lambda tensor, step=step: tensor[step], values)
    for step in range(number)
  ]
