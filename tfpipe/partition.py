"""Cut a chain of layers into cells: consecutive layers that run on one device.

Where each device has one cell, the slowest sets the rate of every schedule, so
`balance` makes the largest load as small as it can be. That alone leaves the other
cells arbitrary, which costs time when the pipeline fills and drains; so among the cuts
with that largest load it takes the one with the least sum of squares. Both are exact:
costs are scaled to integers first, so a tie is a tie.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

__all__ = ["Cells", "balance", "balance_each", "explicit", "imbalance", "loads"]

Cells = tuple[tuple[int, int], ...]
"""Half-open ranges (start, end) of layers, one a cell, complete and in order."""


def balance(costs: Sequence[float], num_cells: int) -> Cells:
  """Cuts layers into cells with the smallest largest load, then the least squares.

  Remaining ties go to the shortest first cell, then the shortest second and so on:
  early stages have the most micro-batches in flight.

  Args:
    costs: cost of each layer, finite and >= 0, in any unit.
    num_cells: number of cells; none is left empty.

  Raises ValueError if there are fewer layers than cells or less than one cell, or for a
  cost that is negative or not finite.
  """
  _check_num_cells(len(costs), num_cells)
  return balance_each([costs] * num_cells)


def balance_each(costs: Sequence[Sequence[float]]) -> Cells:
  """Cuts layers as `balance` does, where a layer costs more in one cell than another.

  Args:
    costs: for each cell, the cost of each layer of the network in it, in one unit.

  Raises as `balance`, and ValueError if cells have costs of different numbers of
  layers.
  """
  rows = list(map(tuple, costs))
  num_layers = len(rows[0]) if rows else 0
  _check_num_cells(num_layers, len(rows))
  for cell, row in enumerate(rows):
    if len(row) != num_layers:
      raise ValueError(
        f"costs[{cell}] is of {len(row)} layers, but costs[0] is of {num_layers}"
      )
  known = list(dict.fromkeys(rows))
  scaled = _integers(list(itertools.chain(*known)))
  # Cutting the reversed chain makes the ties above fall to the last cell's latest cut,
  # which the search finds first. There the last cell is the first one.
  prefix_of = {
    row: [0, *accumulate(reversed(scaled[start : start + num_layers]))]
    for row, start in zip(known, range(0, len(scaled), num_layers), strict=True)
  }
  prefixes = [prefix_of[row] for row in reversed(rows)]
  low, high = _smallest_bound(prefixes), max(prefix[-1] for prefix in prefixes)
  cells = _least_squares(prefixes, low)
  if not cells:  # it was enough only because a cell was left empty
    bound = _first(low + 1, high, lambda bound: bool(_least_squares(prefixes, bound)))
    cells = _least_squares(prefixes, bound)
  return explicit(num_layers, [end - start for start, end in reversed(cells)])


def explicit(num_layers: int, lengths: Sequence[int]) -> Cells:
  """Makes cells from the number of layers in each.

  Raises ValueError if a length is below 1 or the lengths do not add up to num_layers.
  """
  for cell, length in enumerate(lengths):
    if not isinstance(length, int) or length < 1:
      raise ValueError(
        f"lengths[{cell}] is {length!r}: a cell needs a whole number of layers >= 1"
      )
  if sum(lengths) != num_layers:
    raise ValueError(
      f"lengths {list(lengths)} add up to {sum(lengths)}, but there are {num_layers} "
      "layers"
    )
  ends = list(accumulate(lengths))
  return tuple(zip([0, *ends], ends, strict=False))


def loads(costs: Sequence[float], cells: Cells) -> list[float]:
  """Returns the sum of the costs of each cell."""
  return [sum(costs[start:end]) for start, end in cells]


def imbalance(costs: Sequence[float], cells: Cells) -> float:
  """Returns largest load over mean load: 1 is even; 1 too if nothing costs anything."""
  of_cells = loads(costs, cells)
  largest = max(of_cells)
  return largest * len(of_cells) / sum(of_cells) if largest else 1.0


def _check_num_cells(num_layers: int, num_cells: int) -> None:
  if not isinstance(num_cells, int) or num_cells < 1:
    raise ValueError(f"num_cells is {num_cells!r}: expected a whole number >= 1")
  if num_cells > num_layers:
    raise ValueError(
      f"cannot cut {num_layers} layers into {num_cells} cells: a cell needs a layer; "
      f"use at most {num_layers} cells"
    )


def _integers(costs: Sequence[float]) -> list[int]:
  """Scales costs by one factor to integers, exactly: floats are binary fractions."""
  for layer, cost in enumerate(costs):
    if not math.isfinite(cost) or cost < 0:
      raise ValueError(f"costs[{layer}] is {cost!r}: expected a finite number >= 0")
  fractions = [Fraction(cost) for cost in costs]
  scale = math.lcm(*(fraction.denominator for fraction in fractions))
  scaled = [int(fraction * scale) for fraction in fractions]
  divisor = math.gcd(*scaled) or 1
  return [value // divisor for value in scaled]


def _reaches(prefixes: Sequence[Sequence[int]], bound: int) -> list[int]:
  """Returns the most layers that the first 0, 1, .. cells of at most bound hold.

  Args:
    prefixes: for each cell, sums of the first 0, 1, .. layers.
    bound: of each cell.
  """
  reach = [0]
  for left, prefix in zip(reversed(range(len(prefixes))), prefixes, strict=True):
    end = bisect_right(prefix, prefix[reach[-1]] + bound) - 1
    reach.append(min(end, len(prefix) - 1 - left))
  return reach


def _smallest_bound(prefixes: Sequence[Sequence[int]]) -> int:
  """Finds the smallest largest load, if cells may be left empty.

  None is where all cost the same: a bound that serves holds every layer, so each cell
  can take one, and leave one for each of those behind it.
  """
  high = max(prefix[-1] for prefix in prefixes)
  num_layers = len(prefixes[0]) - 1
  return _first(0, high, lambda bound: _reaches(prefixes, bound)[-1] == num_layers)


def _first(low: int, high: int, serves: Callable[[int], bool]) -> int:
  """Finds the first integer that serves, as all above it do and `high` does."""
  while low < high:
    middle = (low + high) // 2
    if serves(middle):
      high = middle
    else:
      low = middle + 1
  return low


def _least_squares(
  prefixes: Sequence[Sequence[int]], bound: int
) -> list[tuple[int, int]]:
  """Finds the cells of least sum of squares with no load above bound.

  Dynamic programming over (number of cells, end of the last): only ends that the cells
  before can reach and the cells behind can complete are visited. Returns none if there
  are no such cells.
  """
  num_cells, num_layers = len(prefixes), len(prefixes[0]) - 1
  first = _reaches(prefixes, bound)
  # Cells whose layers cost the same share one list, and what follows from it.
  distinct = {id(prefix): prefix for prefix in prefixes}
  backward = {
    key: [p[-1] - value for value in reversed(p)] for key, p in distinct.items()
  }
  expire = {
    key: [bisect_right(p, value + bound) for value in p] for key, p in distinct.items()
  }
  last = _reaches([backward[id(prefix)] for prefix in reversed(prefixes)], bound)

  squares, starts = {0: 0}, []
  for used, prefix in enumerate(prefixes, 1):
    low = max(used, num_layers - last[num_cells - used])
    ends = range(low, first[used] + 1)
    squares, start_of = _add_cell(prefix, expire[id(prefix)], squares, ends)
    starts.append(start_of)

  cells, end = [], num_layers
  if end not in squares:
    return cells
  for start_of in reversed(starts):
    cells.append((start_of[end], end))
    end = start_of[end]
  return cells[::-1]


def _add_cell(
  prefix: Sequence[int], expire: Sequence[int], squares: dict[int, int], ends: range
) -> tuple[dict[int, int], dict[int, int]]:
  """Adds one cell behind the best cuts so far: for each end, least squares and start.

  The square of an interval's sum obeys the quadrangle inequality: of two starts, the
  later one, once as good, stays so for all further ends. So the starts that are best
  for some end form a queue, each with the end from which the next one replaces it, and
  all ends together take linear time (but for the binary searches).

  Args:
    prefix: sums of the first 0, 1, .. layers.
    expire: for each start, the first end whose load would be too large.
    squares: for each start, ascending, the least sum of squares before it.
    ends: the ends to find; those that no start reaches are left out.
  """
  # With p = prefix: squares[i] + (p[j] - p[i])^2 = p[j]^2 + height[i] - 2 p[i] p[j].
  height = {start: value + prefix[start] ** 2 for start, value in squares.items()}

  def replaced_at(start: int, later: int) -> int:
    rise, run = height[later] - height[start], prefix[later] - prefix[start]
    if run == 0:
      return 0 if rise <= 0 else expire[start]
    return min(expire[start], bisect_left(prefix, -(-rise // (2 * run))))

  candidates = deque(squares)
  queue: deque[int] = deque()
  until: deque[int] = deque()  # until[n]: end at which queue[n + 1] replaces queue[n]
  best, start_of = {}, {}
  for end in ends:
    while candidates and candidates[0] < end:
      start = candidates.popleft()
      while until and replaced_at(queue[-1], start) <= until[-1]:
        queue.pop()
        until.pop()
      if queue:
        until.append(replaced_at(queue[-1], start))
      queue.append(start)
    while until and until[0] <= end:
      queue.popleft()
      until.popleft()
    if queue and end < expire[queue[0]]:
      start = start_of[end] = queue[0]
      best[end] = squares[start] + (prefix[end] - prefix[start]) ** 2
  return best, start_of
