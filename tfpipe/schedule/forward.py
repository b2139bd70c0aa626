"""Forwards only: evaluation through the pipeline."""

from __future__ import annotations

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule


def schedule(
  num_stages: int, num_micro_batches: int, placement: tuple[tuple[int, ...], ...]
) -> Schedule:
  """Runs each micro-batch through all stages, on the devices that training uses."""
  num_devices = 1 + max(device for pipe in placement for device in pipe)
  actions = tuple(
    tuple(
      Action("F", stage, micro_batch)
      for micro_batch in range(num_micro_batches)
      for stage in range(num_stages)
      if placement[0][stage] == device
    )
    for device in range(num_devices)
  )
  return Schedule(
    "forward", num_stages, num_micro_batches, placement[:1], actions, True, 1
  )
