from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe import partition


def lengths_of(cells: partition.Cells) -> list[int]:
  return [end - start for start, end in cells]


def all_lengths(num_layers: int, num_cells: int) -> list[tuple[int, ...]]:
  return [
    tuple(b - a for a, b in itertools.pairwise((0, *cuts, num_layers)))
    for cuts in itertools.combinations(range(1, num_layers), num_cells - 1)
  ]


def brute_force(costs: list[float], num_cells: int) -> list[int]:
  return brute_force_each([costs] * num_cells)


def brute_force_each(rows: Sequence[Sequence[float]]) -> list[int]:
  """Tries all cuts: largest load, then squares, then the lengths themselves."""

  def goal(lengths: tuple[int, ...]) -> tuple[Fraction, Fraction, tuple[int, ...]]:
    ends = list(itertools.accumulate(lengths))
    loads = [
      sum(map(Fraction, row[end - length : end]), Fraction(0))
      for row, end, length in zip(rows, ends, lengths, strict=True)
    ]
    return max(loads), sum((load**2 for load in loads), Fraction(0)), lengths

  return list(min(all_lengths(len(rows[0]), len(rows)), key=goal))


# Largest loads, and lengths where the least squares leave one answer: published table
# of small chains, worked out by dynamic programming and by brute force.
@pytest.mark.parametrize(
  ("costs", "num_cells", "largest", "lengths"),
  [
    ([1, 2, 3, 4, 5, 6], 2, 11, [4, 2]),
    ([6, 5, 4, 3, 2, 1], 2, 11, [2, 4]),
    ([1] * 8, 3, 3, [2, 3, 3]),
    ([5, 1, 1, 1, 1, 1], 3, 5, [1, 2, 3]),
    ([1, 1, 1, 1, 1, 5], 3, 5, [2, 3, 1]),
    ([9, 1, 1, 1, 1, 1, 1, 1], 4, 9, [1, 2, 2, 3]),
    ([3, 1, 4, 1, 5, 9, 2, 6], 3, 14, [4, 2, 2]),
    ([3, 1, 4, 1, 5, 9, 2, 6], 4, 9, [3, 2, 1, 2]),
    ([2, 3, 5, 7, 11, 13, 17, 19, 23, 29], 4, 41, [6, 2, 1, 1]),
    ([10, 20, 30, 40, 50, 60, 70, 80, 90], 3, 170, [5, 2, 2]),
    ([0, 0], 2, 0, [1, 1]),
  ],
)
def test_known_optima_are_found(
  costs: list[float], num_cells: int, largest: float, lengths: list[int]
) -> None:
  cells = partition.balance(costs, num_cells)
  assert max(partition.loads(costs, cells)) == largest
  assert lengths_of(cells) == lengths


COSTS = st.lists(
  st.one_of(st.integers(0, 9), st.sampled_from([0.1, 0.2, 0.30000000000000004, 1e-9])),
  min_size=1,
  max_size=9,
)


@settings(max_examples=400)
@given(COSTS, st.data())
def test_balance_equals_brute_force(costs: list[float], data: st.DataObject) -> None:
  num_cells = data.draw(st.integers(1, len(costs)))
  assert lengths_of(partition.balance(costs, num_cells)) == (
    brute_force(costs, num_cells)
  )


@settings(max_examples=400)
@given(
  st.integers(1, 8).flatmap(
    lambda num_layers: st.lists(
      st.lists(st.integers(0, 9), min_size=num_layers, max_size=num_layers),
      min_size=1,
      max_size=num_layers,
    )
  )
)
def test_a_layer_may_cost_more_in_one_cell_than_another(rows: list[list[int]]) -> None:
  assert lengths_of(partition.balance_each(rows)) == brute_force_each(rows)


def test_no_cell_is_left_empty_where_a_layer_is_too_much_for_it() -> None:
  # The second cell has a load of 9 with any layer, though loads of 1 would hold all.
  rows = [[0, 0, 0], [9, 9, 9], [0, 0, 1]]
  assert partition.balance_each(rows) == ((0, 1), (1, 2), (2, 3))


def test_costs_of_cells_are_of_the_same_layers() -> None:
  message = r"costs\[1\] is of 1 layers, but costs\[0\] is of 2"
  with pytest.raises(ValueError, match=message):
    partition.balance_each([[1, 2], [1]])
  with pytest.raises(ValueError, match="num_cells is 0: expected a whole"):
    partition.balance_each([])


@settings(max_examples=100)
@given(
  st.lists(st.floats(0, 1e300), min_size=1, max_size=8),
  st.integers(1, 4),
)
def test_balance_is_exact_for_any_float(costs: list[float], num_cells: int) -> None:
  num_cells = min(num_cells, len(costs))
  assert lengths_of(partition.balance(costs, num_cells)) == (
    brute_force(costs, num_cells)
  )


def slow_balance(costs: list[int], num_cells: int) -> list[int]:
  """Tries every end of every cell, from the back, without any of the short cuts."""
  num_layers = len(costs)
  sums = [0, *itertools.accumulate(costs)]
  largest = {num_layers: 0}
  squares: dict[int, tuple[int, list[int]]] = {num_layers: (0, [])}

  def load(start: int, end: int) -> int:
    return sums[end] - sums[start]

  for _ in range(num_cells):
    largest = {
      i: min(max(load(i, j), largest[j]) for j in largest if j > i)
      for i in range(num_layers)
      if any(j > i for j in largest)
    }
  bound = largest[0]
  for _ in range(num_cells):
    squares = {
      i: min(options)
      for i in range(num_layers)
      if (
        options := [
          (load(i, j) ** 2 + rest, [j - i, *lengths])
          for j, (rest, lengths) in squares.items()
          if j > i and load(i, j) <= bound
        ]
      )
    }
  return squares[0][1]


@settings(max_examples=60)
@given(
  st.lists(st.one_of(st.integers(0, 3), st.integers(0, 100)), min_size=20, max_size=40),
  st.integers(1, 20),
)
def test_balance_equals_plain_dynamic_programming(
  costs: list[int], num_cells: int
) -> None:
  cells = partition.balance(costs, num_cells)
  assert lengths_of(cells) == slow_balance(costs, num_cells)


def test_every_layer_is_in_one_cell_and_remainders_are_spread() -> None:
  for num_layers in range(1, 41):
    for num_cells in range(1, min(16, num_layers) + 1):
      cells = partition.balance([1.0] * num_layers, num_cells)
      layers = [layer for start, end in cells for layer in range(start, end)]
      assert layers == list(range(num_layers))
      assert max(lengths_of(cells)) - min(lengths_of(cells)) <= 1
      assert lengths_of(cells) == sorted(lengths_of(cells))


def test_rounded_sums_do_not_break_ties() -> None:
  # In floats 0.1 + 0.2 > 0.3 and (0.1 + 0.2) + 0.3 != 0.1 + (0.2 + 0.3).
  tenth, fifth = Fraction(1, 10), Fraction(2, 10)
  costs = [float(tenth), float(fifth), float(fifth), float(tenth)]
  assert lengths_of(partition.balance(costs, 2)) == [2, 2]
  assert lengths_of(partition.balance([0.1] * 9, 3)) == [3, 3, 3]


def test_the_unit_of_costs_does_not_matter() -> None:
  costs = [3, 1, 4, 1, 5, 9, 2, 6]
  for unit in (0.125, 3, 2.0**80):
    scaled = [cost * unit for cost in costs]
    assert partition.balance(scaled, 4) == partition.balance(costs, 4)


def test_a_long_chain_is_cut_evenly() -> None:
  cells = partition.balance([1.0] * 1663, 128)
  assert sorted(set(lengths_of(cells))) == [12, 13]
  assert lengths_of(cells).count(13) == 1663 - 12 * 128


def test_a_long_chain_with_one_dominant_layer_is_even_elsewhere() -> None:
  cells = partition.balance([1.0] * 1000 + [1e6] + [1.0] * 600, 17)
  # 16 cells share 1,600 layers, but none can lie on both sides of the large one.
  assert lengths_of(cells) == [100] * 10 + [1] + [100] * 6


def test_more_cells_than_layers_are_refused() -> None:
  with pytest.raises(ValueError, match="cannot cut 3 layers into 4 cells"):
    partition.balance([1, 1, 1], 4)
  with pytest.raises(ValueError, match="cannot cut 0 layers into 1 cells"):
    partition.balance([], 1)


@pytest.mark.parametrize("num_cells", [0, -1, 1.5])
def test_fewer_cells_than_one_are_refused(num_cells: int) -> None:
  with pytest.raises(ValueError, match=f"num_cells is {num_cells}: expected a whole"):
    partition.balance([1, 1, 1], num_cells)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_impossible_costs_are_refused(cost: float) -> None:
  with pytest.raises(ValueError, match=rf"costs\[1\] is {cost}: expected a finite"):
    partition.balance([1.0, cost], 1)


def test_explicit_lengths_become_ranges() -> None:
  assert partition.explicit(7, [4, 1, 2]) == ((0, 4), (4, 5), (5, 7))


def test_explicit_lengths_must_add_up() -> None:
  with pytest.raises(ValueError, match=r"\[4, 2\] add up to 6, but there are 7 layers"):
    partition.explicit(7, [4, 2])
  with pytest.raises(ValueError, match="add up to 0, but there are 7"):
    partition.explicit(7, [])


@pytest.mark.parametrize("length", [0, -1, 1.0])
def test_explicit_lengths_must_be_positive(length: int) -> None:
  with pytest.raises(ValueError, match=rf"lengths\[1\] is {length}: a cell needs"):
    partition.explicit(3, [2, length])


def test_imbalance_is_largest_over_mean() -> None:
  cells = partition.explicit(4, [2, 1, 1])
  assert partition.loads([1, 2, 3, 0], cells) == [3, 3, 0]
  assert partition.imbalance([1, 2, 3, 0], cells) == 1.5
  assert partition.imbalance([0, 0, 0, 0], cells) == 1.0
