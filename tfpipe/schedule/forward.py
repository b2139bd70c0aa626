"""Forwards only: evaluation through the pipeline."""

from __future__ import annotations

import heapq

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule


def schedule(
  num_stages: int, num_micro_batches: int, placement: tuple[tuple[int, ...], ...]
) -> Schedule:
  """Runs each micro-batch through all stages, on the devices that training uses.

  As if all stages took one tick, in each of which a device takes the micro-batch that
  has come furthest of those that are there. So a device with several stages neither
  waits for its own results nor keeps more of them than it must.
  """
  devices = placement[0]
  lists: list[list[Action]] = [[] for _ in range(1 + max(map(max, placement)))]
  there: list[list[tuple[int, int]]] = [[] for _ in lists]
  there[devices[0]] = [(0, micro_batch) for micro_batch in range(num_micro_batches)]
  while any(there):
    done = [(device, *heapq.heappop(heap)) for device, heap in enumerate(there) if heap]
    for device, behind, micro_batch in done:
      stage = -behind
      lists[device].append(Action("F", stage, micro_batch))
      if stage + 1 < num_stages:
        heapq.heappush(there[devices[stage + 1]], (behind - 1, micro_batch))
  actions = tuple(map(tuple, lists))
  return Schedule(
    "forward", num_stages, num_micro_batches, placement[:1], actions, True, 1
  )
