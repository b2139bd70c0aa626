"""Schedules made by hand, with every feature the record has: data, not code under test.

Each is written from its published definition; what they promise is next to them.
"""

from __future__ import annotations

import re

from tfpipe.schedule import Action, Schedule

_TOKEN = re.compile(r"([A-Z]+)(\d+):(\d+)(?:/(\d+))?(?:x(\d+))?(?:v(\d+))?")


def actions(text: str) -> tuple[Action, ...]:
  """Reads 'BW1:3/1x2v4': kind, stage : micro-batch / pipe x size v version."""
  result = []
  for token in text.split():
    match = _TOKEN.fullmatch(token)
    assert match, token
    kind, *numbers = match.groups()
    defaults = (0, 0, 0, 1, 0)
    values = [int(n) if n else d for n, d in zip(numbers, defaults, strict=True)]
    result.append(Action(kind, *values))  # type: ignore[arg-type]
  return tuple(result)


def interleaved() -> Schedule:
  """Two stages on each of two devices, four micro-batches."""
  return Schedule(
    name="interleaved",
    num_stages=4,
    num_micro_batches=4,
    placement=((0, 1, 0, 1),),
    actions=(
      actions(
        "F0:0 F0:1 F2:0 F2:1 F0:2 BW2:0 F0:3 BW2:1 F2:2 BW0:0 F2:3 BW0:1 "
        "BW2:2 BW2:3 BW0:2 BW0:3 U0:0 U2:0"
      ),
      actions(
        "F1:0 F1:1 F3:0 BW3:0 F3:1 BW3:1 F1:2 BW1:0 F1:3 BW1:1 F3:2 BW3:2 F3:3 BW3:3 "
        "BW1:2 BW1:3 U1:0 U3:0"
      ),
    ),
  )


def chimera_two() -> Schedule:
  """Two devices, two pipes in opposite directions, one micro-batch in each."""
  return Schedule(
    name="chimera",
    num_stages=2,
    num_micro_batches=2,
    placement=((0, 1), (1, 0)),
    actions=(
      actions("F0:0 F1:1/1 BW1:1/1 BW0:0 U0:0 U1:0/1"),
      actions("F0:1/1 F1:0 BW1:0 BW0:1/1 U1:0 U0:0/1"),
    ),
  )


def zero_bubble_two() -> Schedule:
  """ZB-H1 on two devices, three micro-batches: input and weight gradients apart."""
  return Schedule(
    name="zb_h1",
    num_stages=2,
    num_micro_batches=3,
    placement=((0, 1),),
    actions=(
      actions("F0:0 F0:1 B0:0 W0:0 F0:2 B0:1 W0:1 B0:2 W0:2 U0:0"),
      actions("F1:0 B1:0 F1:1 B1:1 W1:0 F1:2 B1:2 W1:1 W1:2 U1:0"),
    ),
  )


def pipedream_two() -> Schedule:
  """PipeDream on two devices, three mini-batches: an update after each backward."""
  return Schedule(
    name="pipedream",
    num_stages=2,
    num_micro_batches=3,
    placement=((0, 1),),
    actions=(
      actions("F0:0 F0:1 BW0:0 U0:0 F0:2v1 BW0:1 U0:1 BW0:2v1 U0:2"),
      actions("F1:0 BW1:0 U1:0 F1:1v1 BW1:1v1 U1:1 F1:2v2 BW1:2v2 U1:2"),
    ),
    exact=False,
    num_versions=2,
  )


def zero_bubble_h1(num_stages: int, num_micro_batches: int) -> Schedule:
  """ZB-H1: 1F1B with each W put off by as many micro-batches as the stage is deep."""
  lists = []
  for s in range(num_stages):
    warm_up = min(num_micro_batches, num_stages - 1 - s)
    made = [Action("F", s, m) for m in range(warm_up)]
    for m in range(num_micro_batches):
      if warm_up + m < num_micro_batches:
        made.append(Action("F", s, warm_up + m))
      made.append(Action("B", s, m))
      if m >= s:
        made.append(Action("W", s, m - s))
    first_left = max(0, num_micro_batches - s)
    made += [Action("W", s, m) for m in range(first_left, num_micro_batches)]
    lists.append((*made, Action("U", s, 0)))
  return Schedule(
    name="zb_h1",
    num_stages=num_stages,
    num_micro_batches=num_micro_batches,
    placement=(tuple(range(num_stages)),),
    actions=tuple(lists),
  )


def chimera(num_stages: int, num_micro_batches: int, size: int = 1) -> Schedule:
  """Chimera with one pair of pipes; size 2 is its forward doubling.

  Without doubling the j-th forward of a pipe is at slot 2j + s and its backward at
  2j + 2D - 1 - s, in units of D micro-batches every 2D slots; with it, the two
  backwards are at 2j + 2D - 1 - s and D later, units of 2D every 3D.
  """
  depth = num_stages
  unit = size * depth
  period = (1 + size) * depth
  slots: list[list[tuple[int, Action]]] = [[] for _ in range(depth)]
  for first in range(0, num_micro_batches, size):
    number, within = divmod(first, unit)
    pipe, j = divmod(within // size, depth // 2)
    for s in range(depth):
      device = s if pipe == 0 else depth - 1 - s
      start = number * period + 2 * j
      slots[device].append((start + s, Action("F", s, first, pipe, size)))
      for half in range(size):
        slot = start + (2 + half) * depth - 1 - s
        slots[device].append((slot, Action("BW", s, first + half, pipe)))
  lists = [[action for _, action in sorted(of_device)] for of_device in slots]
  for device, made in enumerate(lists):
    made += [Action("U", device, 0), Action("U", depth - 1 - device, 0, 1)]
  down = tuple(range(depth))
  return Schedule(
    name="chimera",
    num_stages=depth,
    num_micro_batches=num_micro_batches,
    placement=(down, down[::-1]),
    actions=tuple(map(tuple, lists)),
  )


def stream(num_stages: int, num_updates: int, per_update: int = 1) -> Schedule:
  """PipeDream (an update per mini-batch) or 2BW (one per several): 1F1B, no flush."""
  total = num_updates * per_update
  lists = []
  for s in range(num_stages):
    delay = num_stages - 1 - s

    def version(m: int, delay: int = delay) -> int:
      return max(0, m - delay if per_update == 1 else m // per_update - 1)

    forwards = [Action("F", s, m, version=version(m)) for m in range(total)]
    made = forwards[:delay]
    for m in range(total):
      made += forwards[delay + m : delay + m + 1]
      made.append(Action("BW", s, m, version=version(m)))
      if (m + 1) % per_update == 0:
        made.append(Action("U", s, m // per_update))
    lists.append(tuple(made))
  return Schedule(
    name="pipedream" if per_update == 1 else "2bw",
    num_stages=num_stages,
    num_micro_batches=total,
    placement=(tuple(range(num_stages)),),
    actions=tuple(lists),
    exact=False,
    num_versions=num_stages if per_update == 1 else 2,
  )


ALL = [
  interleaved(),
  chimera_two(),
  zero_bubble_two(),
  pipedream_two(),
  zero_bubble_h1(4, 8),
  chimera(4, 4),
  chimera(4, 8),
  chimera(4, 8, size=2),
  stream(4, 9),
  stream(3, 4, per_update=4),
]
