"""The benchmark's arithmetic; what it measures is no test."""

import subprocess
import sys

import pytest

from tools import benchmark


def test_of_the_steps_the_fastest_counts_and_of_the_processes_the_median():
  class Bench(benchmark.Bench):
    answers = iter([{"secs": [3.0, 2.0], "nodes": n} for n in (5, 7, 6)])

    def _run(self, command):
      return next(self.answers)

  bench = Bench(quick=False)
  assert bench.turns({"a": ["x"]}) == {"a": {"secs": 2.0, "nodes": 6}}
  assert [run["nodes"] for run in bench.raw["a"]] == [5, 7, 6]


@pytest.mark.parametrize(
  ("value", "at_most", "short"),
  [(0.9, False, True), (1.0, False, False), (0.9, True, False), (1.1, True, True)],
)
def test_what_falls_short_is_marked(value, at_most, short):
  figure = benchmark.Figure("some", value, 1.0, at_most, "1 s, 2 s")
  assert ("short" in benchmark.table([figure]).splitlines()[1]) == short


def test_the_bound_with_recomputation_is_that_of_the_schedule():
  # F and R take 1, the gradient 2. The second stage begins at 1 and is never idle: 8 F,
  # 8 times R and the gradient. Then the first, which has recomputed, does its last one.
  assert benchmark._remat_makespan(8) == 1 + 8 + 8 * (1 + 2) + 2


def test_an_unknown_section_is_refused():
  run = subprocess.run(
    [sys.executable, "-m", "tools.benchmark", "--only=speed"],
    capture_output=True,
    text=True,
    check=False,
  )
  assert run.returncode == 1
  assert "--only=speed: must be of efficiency, peers" in run.stderr
