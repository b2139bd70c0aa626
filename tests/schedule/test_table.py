"""Published step times, bubbles and memory of every schedule, exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest

from tfpipe.schedule import Schedule, in_flight, make, validate
from tfpipe.simulate import StageTimes, period, period_waste, simulate

# Forward 1, backward 2 (input and weight gradient 1 each), equal stages; with V stages
# a device each takes 1/V. A chimera_halving of M has 2 M halves, of half the times.
#
# name, pairs of pipes, K, M, V | makespan, its bubble | longest span = period, its
# bubble | in flight, on each device or on all | kept to W, if not the same
TABLE = """
gpipe            - 4  8 1 |    33 0.2727 |    33 0.2727 | 8
gpipe+R          - 4  8 1 |    41 0.4146 |    41 0.4146 | 8 | 1
1f1b             - 4  8 1 |    33 0.2727 |    33 0.2727 | 4 3 2 1
1f1b+R           - 4  8 1 |    41 0.4146 |    41 0.4146 | 4 3 2 1 | 1
eager_1f1b       - 4  8 1 |    33 0.2727 |    33 0.2727 | 7 5 3 1
interleaved      - 4  8 2 |  57/2 0.1579 |  57/2 0.1579 | 11 9 7 5 /2
interleaved      - 4  8 4 | 105/4 0.0857 | 105/4 0.0857 | 19 17 15 13 /4
looped_bfs       - 4  8 2 |  57/2 0.1579 |  57/2 0.1579 | 8
zb_h1            - 4  8 1 |    27 0.1111 |    27 0.1111 | 4 3 2 1 | 4
zb_h2            - 4  8 1 |    27 0.1111 |    24 0.0000 | 7 5 3 1 | 7
zb_v             - 4  8 2 |  51/2 0.0588 |    24 0.0000 | 4
chimera          1 4  8 1 |    30 0.2000 |    30 0.2000 | 3 4 4 3
chimera          2 4  8 1 |    24 0.0000 |    24 0.0000 | 4
chimera_doubling - 4  8 1 |    28 0.1429 |    28 0.1429 | 7 8 8 7
chimera_halving  - 4  8 1 |    26 0.0769 |    26 0.0769 | 7 8 8 7 /2
dualpipe_v       - 4  8 2 |  51/2 0.0588 |  51/2 0.0588 | 9 /2
gpipe            - 4  4 1 |    21 0.4286 |    21 0.4286 | 4
gpipe+R          - 4  4 1 |    25 0.5200 |    25 0.5200 | 4 | 1
1f1b             - 4  4 1 |    21 0.4286 |    21 0.4286 | 4 3 2 1
1f1b+R           - 4  4 1 |    25 0.5200 |    25 0.5200 | 4 3 2 1 | 1
eager_1f1b       - 4  4 1 |    21 0.4286 |    21 0.4286 | 4 4 3 1
interleaved      - 4  4 2 |  33/2 0.2727 |  33/2 0.2727 | 8 8 7 5 /2
interleaved      - 4  4 4 |  57/4 0.1579 |  57/4 0.1579 | 16 16 15 13 /4
looped_bfs       - 4  4 2 |  33/2 0.2727 |  33/2 0.2727 | 4
zb_h1            - 4  4 1 |    15 0.2000 |    15 0.2000 | 4 3 2 1 | 4
zb_h2            - 4  4 1 |    16 0.2500 |    15 0.2000 | 4 4 3 1 | 4
zb_v             - 4  4 2 |    15 0.2000 |    15 0.2000 | 5 6 7 8 /2
chimera          1 4  4 1 |    16 0.2500 |    16 0.2500 | 3 4 4 3
chimera          2 4  4 1 |    12 0.0000 |    12 0.0000 | 4
gpipe            - 2 32 1 |    99 0.0303 |    99 0.0303 | 32
gpipe+R          - 2 32 1 |   131 0.2672 |   131 0.2672 | 32 | 1
1f1b             - 2 32 1 |    99 0.0303 |    99 0.0303 | 2 1
1f1b+R           - 2 32 1 |   131 0.2672 |   131 0.2672 | 2 1 | 1
eager_1f1b       - 2 32 1 |    99 0.0303 |    99 0.0303 | 3 1
interleaved      - 2 32 2 | 195/2 0.0154 | 195/2 0.0154 | 5 3 /2
interleaved      - 2 32 4 | 387/4 0.0078 | 387/4 0.0078 | 9 7 /4
looped_bfs       - 2 32 2 | 195/2 0.0154 | 195/2 0.0154 | 32
zb_h1            - 2 32 1 |    97 0.0103 |    97 0.0103 | 2 1 | 2
zb_h2            - 2 32 1 |    97 0.0103 |    96 0.0000 | 3 1 | 3
zb_v             - 2 32 2 | 193/2 0.0052 |    96 0.0000 | 2
chimera          1 2 32 1 |    96 0.0000 |    96 0.0000 | 2
chimera_doubling - 2 32 1 |    96 0.0000 |    96 0.0000 | 4
chimera_halving  - 2 32 1 |    96 0.0000 |    96 0.0000 | 2
dualpipe_v       - 2 32 2 | 193/2 0.0052 | 193/2 0.0052 | 5 /2
gpipe            - 8 32 1 |   117 0.1795 |   117 0.1795 | 32
gpipe+R          - 8 32 1 |   149 0.3557 |   149 0.3557 | 32 | 1
1f1b             - 8 32 1 |   117 0.1795 |   117 0.1795 | 8 7 6 5 4 3 2 1
1f1b+R           - 8 32 1 |   149 0.3557 |   149 0.3557 | 8 7 6 5 4 3 2 1 | 1
eager_1f1b       - 8 32 1 |   117 0.1795 |   117 0.1795 | 15 13 11 9 7 5 3 1
interleaved      - 8 32 2 | 213/2 0.0986 | 213/2 0.0986 | 23 21 19 17 15 13 11 9 /2
interleaved      - 8 32 4 | 405/4 0.0519 | 405/4 0.0519 | 39 37 35 33 31 29 27 25 /4
looped_bfs       - 8 32 2 | 213/2 0.0986 | 213/2 0.0986 | 32
zb_h1            - 8 32 1 |   103 0.0680 |   103 0.0680 | 8 7 6 5 4 3 2 1 | 8
zb_h2            - 8 32 1 |   103 0.0680 |    96 0.0000 | 15 13 11 9 7 5 3 1 | 15
zb_v             - 8 32 2 | 199/2 0.0352 |    96 0.0000 | 8
chimera          1 8 32 1 |   126 0.2381 |   126 0.2381 | 5 6 7 8 8 7 6 5
chimera          2 8 32 1 |   106 0.0943 |   106 0.0943 | 7 8 8 7 7 8 8 7
chimera          4 8 32 1 |    96 0.0000 |    96 0.0000 | 8
chimera_doubling - 8 32 1 |   108 0.1111 |   108 0.1111 | 13 14 15 16 16 15 14 13
chimera_halving  - 8 32 1 |   102 0.0588 |   102 0.0588 | 13 14 15 16 16 15 14 13 /2
dualpipe_v       - 8 32 2 | 199/2 0.0352 | 199/2 0.0352 | 17 /2
"""


class Row(NamedTuple):
  schedule: Schedule
  times: StageTimes
  makespan: Fraction
  bubble: float
  period: Fraction
  period_bubble: float
  in_flight: tuple[Fraction, ...]
  kept: tuple[Fraction, ...]


def read(line: str) -> Row:
  head, makespan, span, *memory = line.split("|")
  name, pairs, *sizes = head.split()
  num_devices, number, each = map(int, sizes)
  halves = 2 if name == "chimera_halving" else 1
  schedule = make(
    name.removesuffix("+R"),
    num_devices,
    number * halves,
    name.endswith("+R"),
    stages_per_device=each if each > 1 else 0,
    num_pairs=0 if pairs == "-" else int(pairs),
  )
  part = Fraction(1, each * halves)
  counts = [per_device(text, num_devices, halves) for text in memory]
  return Row(
    schedule,
    StageTimes.equal(num_devices * each, part, part, part),
    Fraction(makespan.split()[0]),
    float(makespan.split()[1]),
    Fraction(span.split()[0]),
    float(span.split()[1]),
    counts[0],
    counts[-1],
  )


def per_device(text: str, num_devices: int, factor: int) -> tuple[Fraction, ...]:
  """Reads '7 5 /2' as 7/2, 5/2, and a single number as that of all devices."""
  numbers, _, divisor = text.partition("/")
  counts = [Fraction(int(n) * factor, int(divisor or 1)) for n in numbers.split()]
  return tuple(counts * num_devices if len(counts) == 1 else counts)


LINES = TABLE.strip().splitlines()


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:27].strip())
def test_every_row_comes_out_exactly(line: str) -> None:
  row = read(line)
  validate(row.schedule)
  timeline = simulate(row.schedule, row.times)
  assert timeline.makespan == row.makespan
  assert timeline.waste == pytest.approx(row.bubble, abs=5e-5)
  assert timeline.longest_span == row.period
  assert timeline.span_waste == pytest.approx(row.period_bubble, abs=5e-5)
  assert period(row.schedule, row.times) == row.period
  bubble = period_waste(row.schedule, row.times)
  assert bubble == pytest.approx(row.period_bubble, abs=5e-5)
  assert in_flight(row.schedule) == (row.in_flight, row.kept)


def test_the_table_has_every_schedule() -> None:
  assert len(LINES) == 61
