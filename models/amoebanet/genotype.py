"""The cells that evolution found (Real et al., AAAI 2019, arXiv:1802.01548), as data.

    states 0 (newest input) and 1 (the input before it)
       │
    pair i:  state i+2 = left(state a) + right(state b)
       │
    output = concatenation of some states, in ascending order

The tables are those of the code that GPipe's author published with the TPU models; they
differ from the figures of the first versions of the paper, and it is they that give
GPipe's parameter counts (AmoebaNet-B (18, 512): 557 million).
"""

from __future__ import annotations

import dataclasses
import re

_OPERATION = re.compile(r"(\w+)\((\d)\)")


@dataclasses.dataclass(frozen=True)
class Operation:
  """An operation and the state that it reads."""

  name: str
  state: int


@dataclasses.dataclass(frozen=True)
class CellGenotype:
  """Wiring of a cell.

  Attributes:
    pairs: left and right operation of each pair; pair i makes state i + 2.
    concat: states that make the output, ascending.
  """

  pairs: tuple[tuple[Operation, Operation], ...]
  concat: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Genotype:
  """The two kinds of cells of a network."""

  normal: CellGenotype
  reduction: CellGenotype


def _cell(concat: tuple[int, ...], *pairs: str) -> CellGenotype:
  """Reads pairs such as `1x1(1) + max_pool_3x3(1)`."""
  parsed = []
  for pair in pairs:
    left, right = (Operation(n, int(s)) for n, s in _OPERATION.findall(pair))
    parsed.append((left, right))
  return CellGenotype(tuple(parsed), concat)


GENOTYPES = {
  "amoebanet_a": Genotype(
    normal=_cell(
      (1, 3, 4, 6),
      "avg_pool_3x3(0) + max_pool_3x3(0)",
      "separable_3x3_2(1) + none(1)",
      "none(0) + avg_pool_3x3(1)",
      "separable_3x3_2(0) + separable_5x5_2(2)",
      "avg_pool_3x3(5) + separable_3x3_2(0)",
    ),
    reduction=_cell(
      (2, 3, 4, 5, 6),
      "separable_3x3_2(1) + avg_pool_3x3(0)",
      "max_pool_3x3(0) + separable_7x7_2(2)",
      "max_pool_3x3(1) + max_pool_3x3(0)",
      "separable_3x3_2(4) + 1x7_7x1(0)",
      "avg_pool_3x3(1) + separable_7x7_2(0)",
    ),
  ),
  "amoebanet_b": Genotype(
    normal=_cell(
      (0, 3, 4, 6),
      "1x1(1) + max_pool_3x3(1)",
      "none(1) + separable_3x3_2(0)",
      "1x1(1) + separable_3x3_2(0)",
      "1x1(2) + none(2)",
      "avg_pool_3x3(1) + 1x1(5)",
    ),
    reduction=_cell(
      (5, 6),
      "max_pool_2x2(0) + max_pool_3x3(0)",
      "none(2) + 3x3(1)",
      "dil_2_separable_5x5_2(2) + max_pool_3x3(2)",
      "none(3) + separable_3x3_2(1)",
      "avg_pool_3x3(4) + 1x1(3)",
    ),
  ),
  "amoebanet_c": Genotype(
    normal=_cell(
      (1, 2, 4, 5, 6),
      "avg_pool_3x3(0) + separable_3x3_2(0)",
      "none(0) + separable_3x3_2(0)",
      "avg_pool_3x3(2) + separable_3x3_2(1)",
      "none(0) + separable_3x3_2(1)",
      "avg_pool_3x3(3) + separable_3x3_2(0)",
    ),
    reduction=_cell(
      (0, 2, 3, 4, 5, 6),
      "max_pool_3x3(0) + max_pool_3x3(0)",
      "separable_7x7_2(2) + separable_3x3_2(0)",
      "separable_7x7_2(0) + max_pool_3x3(1)",
      "separable_5x5_2(4) + separable_5x5_2(4)",
      "max_pool_3x3(1) + separable_3x3_2(1)",
    ),
  ),
  "amoebanet_d": Genotype(
    normal=_cell(
      (0, 3, 4, 6),
      "1x1(1) + max_pool_3x3(1)",
      "none(1) + 1x7_7x1(0)",
      "1x1(0) + 1x7_7x1(0)",
      "max_pool_3x3(2) + none(2)",
      "avg_pool_3x3(1) + 1x1(5)",
    ),
    reduction=_cell(
      (4, 5, 6),
      "max_pool_2x2(0) + max_pool_3x3(0)",
      "none(2) + 3x3(1)",
      "1x7_7x1(2) + max_pool_3x3(2)",
      "none(3) + max_pool_2x2(1)",
      "avg_pool_3x3(2) + 1x1(3)",
    ),
  ),
}
