"""Search for the best zero-bubble schedule of unequal stages within a memory limit.

A greedy run through time puts forwards and backwards as early as it can and fills waits
with weight gradients. What is best near a limit or at the end of a step differs, so it
runs under several rules, and the shortest of all schedules found is taken. Qi et al.,
"Zero Bubble Pipeline Parallelism" (2023), section 3.1, describes such a heuristic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tfpipe.schedule import Action, Schedule, make, without_needless_recomputation
from tfpipe.schedule.generate import SizeError, check_number, finish, straight, v_shaped
from tfpipe.schedule.greedy import Problem, Rule, put_in_order
from tfpipe.simulate import StageTimes, per_border, simulate
from tfpipe.timeline import Secs

__all__ = ["EFFORT", "MOST_CELLS", "zero_bubble"]

MOST_CELLS = 8192
"""Most pairs of a stage and a micro-batch that are searched: some seconds."""

EFFORT = 100
"""How many times as long a search takes as to make another schedule of that size."""


def zero_bubble(
  times: StageTimes,
  num_micro_batches: int,
  memory_limit: float,
  *,
  stages_per_device: int = 1,
  forward_keeps: Sequence[float] = (),
  gradient_keeps: Sequence[float] = (),
  remat: bool = False,
  transfer_secs: Secs | Sequence[Secs] = 0,
  link_secs: Secs | Sequence[Secs] = 0,
) -> Schedule:
  """Returns the schedule found whose step is shortest.

  Steps follow each other behind one update of all stages, so that their time counts; of
  equals, the longest span of a device, by which the paper compares schedules.

  Tried are a greedy search under eight rules; the order of forwards and backwards of
  1F1B, ZB-H1 and ZB-H2 (of ZB-V with two stages a device) with weight gradients where
  there is a wait; and those schedules themselves. So it is never worse than one of them
  that fits the limit. Weight gradients of a stage are in increasing order.

  Memory is counted in any unit: by default in activations of one stage and micro-batch
  that are kept whole from F to W. So on K devices ZB-H1 needs a limit of K, ZB-V of
  2K.

  Args:
    times: how long stages take.
    num_micro_batches: micro-batches of a step, >= 1.
    memory_limit: the most that a device may keep.
    stages_per_device: 1, or 2 in a V: device d of K has stages d and 2K - 1 - d.
    forward_keeps: what each stage keeps of a micro-batch after F; 1 each unless given.
      With remat that is its input.
    gradient_keeps: what it keeps between B and W; as forward_keeps unless given.
    remat: whether a stage recomputes its forward before each B, unless it is held.
    transfer_secs: as of `simulate`.
    link_secs: as of `simulate`.

  Raises ValueError for sizes that do not fit together or are not allowed, for more than
  MOST_CELLS stages times micro-batches, and for a limit at which a device cannot do a
  single micro-batch.
  """
  backward_secs = [
    b + r if remat else b
    for b, r in zip(times.input_gradient, times.recompute, strict=True)
  ]
  problem = _problem(
    StageTimes(times.forward, backward_secs, times.weight_gradient),
    num_micro_batches,
    memory_limit,
    stages_per_device,
    forward_keeps,
    gradient_keeps,
    [
      latency + occupied
      for latency, occupied in zip(
        per_border("transfer_secs", transfer_secs, len(times.forward) - 1),
        per_border("link_secs", link_secs, len(times.forward) - 1),
        strict=True,
      )
    ],
  )
  found = []
  for lists in _candidates(problem):
    schedule = without_needless_recomputation(
      finish("zb_auto", num_micro_batches, [problem.placement], lists, remat)
    )
    timeline = simulate(schedule, times, transfer_secs, link_secs)
    found.append((timeline.makespan, timeline.longest_span, len(found), schedule))
  return min(found)[-1]


def _problem(
  times: StageTimes,
  num_micro_batches: int,
  memory_limit: float,
  stages_per_device: int,
  forward_keeps: Sequence[float],
  gradient_keeps: Sequence[float],
  border_secs: Sequence[Secs],
) -> Problem:
  """Checks what is given and makes the problem of it."""
  num_stages = len(times.forward)
  check_number("zb_auto", "num_micro_batches", num_micro_batches)
  if num_stages * num_micro_batches > MOST_CELLS:
    allowed = (
      f"at most {MOST_CELLS // num_stages} with {num_stages} stages, for no more than "
      f"{MOST_CELLS} pairs of both are searched; zb_h1, zb_h2 and zb_v take any number"
    )
    raise SizeError("zb_auto", "num_micro_batches", num_micro_batches, allowed)
  if stages_per_device not in (1, 2) or num_stages % stages_per_device:
    allowed = f"1, or 2 in a V if the number of stages, {num_stages}, is even"
    raise SizeError("zb_auto", "stages_per_device", stages_per_device, allowed)
  num_devices = num_stages // stages_per_device
  forward_keeps = forward_keeps or [1] * num_stages
  gradient_keeps = gradient_keeps or forward_keeps
  for name, values in (
    ("forward_keeps", forward_keeps),
    ("gradient_keeps", gradient_keeps),
  ):
    if len(values) != num_stages or min(values) < 0:
      raise ValueError(
        f"zb_auto: {name} is {list(values)}: expected a number >= 0 for each of "
        f"{num_stages} stages"
      )
  problem = Problem(
    placement=(straight if stages_per_device == 1 else v_shaped)(num_devices),
    num_micro_batches=num_micro_batches,
    secs={
      "F": times.forward,
      "B": times.input_gradient,
      "W": times.weight_gradient,
    },
    transfer_secs=border_secs,
    forward_keeps=forward_keeps,
    gradient_keeps=gradient_keeps,
    memory_limit=memory_limit,
  )
  for device in range(num_devices):
    if problem.least_memory(device) > memory_limit:
      raise ValueError(
        f"zb_auto: memory_limit is {memory_limit!r}, but device {device} needs "
        f"{problem.least_memory(device)} for a single micro-batch"
      )
  return problem


def _candidates(problem: Problem) -> Iterator[Sequence[Sequence[Action]]]:
  """Yields lists of forwards and backwards that keep to the memory limit."""
  several = len(problem.placement) > 1 + max(problem.placement)
  rules = [
    Rule(ahead, first, fill)
    for ahead, first, fill in itertools.product((False, True), repeat=3)
  ]
  for name in ("zb_v",) if several else ("1f1b", "zb_h1", "zb_h2"):
    published = make(name, 1 + max(problem.placement), problem.num_micro_batches)
    lists = [[a for a in actions if a.kind != "U"] for actions in published.actions]
    if problem.fits(lists):
      yield lists
    orders = [
      [
        Action("F" if a.kind == "F" else "B", a.stage, a.micro_batch)
        for a in actions
        if a.kind != "W"
      ]
      for actions in lists
    ]
    rules += [Rule(False, False, fill, orders) for fill in (False, True)]
  for rule in rules:
    lists = put_in_order(problem, rule)
    if lists is not None:
      yield lists
