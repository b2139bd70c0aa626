"""The benchmark's arithmetic; what it measures is no test."""

import subprocess
import sys

import pytest

from tests.tools.commands import Collected, params_of
from tfpipe import plan
from tools import benchmark, benchmark_peers, benchmark_runs


def test_of_the_steps_the_fastest_counts_and_of_the_processes_the_median():
  class Bench(benchmark.Bench):
    answers = iter([{"secs": [3.0, 2.0], "nodes": n} for n in (5, 7, 6)])

    def _run(self, command, environment=None):
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


@pytest.fixture
def collected(monkeypatch):
  """Goes through all sections as if PyTorch were there, without a process."""
  monkeypatch.setattr(benchmark_runs, "run_tool", lambda *_: "")
  monkeypatch.setattr(benchmark_peers, "installed", lambda *_: True)
  monkeypatch.setattr("tools.benchmark_memory.installed", lambda *_: True)
  bench = Collected()
  figures = [f for section in benchmark.SECTIONS.values() for f in section(bench)]
  return bench, figures


def test_every_command_of_tfpipe_has_a_plan(collected):
  bench, _ = collected
  own = [c for c in bench.commands.values() if c[0] == "tools.benchmark_step"]
  assert len(own) > 20
  for params in map(params_of, own):
    assert plan.make(params).cells


def test_every_figure_has_a_name_of_its_own(collected):
  _, figures = collected
  names = [figure.name for figure in figures]
  assert len({*names}) == len(names) > 30


def test_an_empty_action_is_what_more_cells_take_by_their_number():
  class Bench(Collected):
    def turns(self, runs):
      super().turns(runs)
      # Of 2 and 10 cells a device, each with a forward and a backward of 64.
      return dict(
        zip(runs, ({"secs": 0.5}, {"secs": 0.5 + 8 * 128 * 3e-5}), strict=True)
      )

  bench = Bench()
  (figure,) = benchmark.overhead(bench)
  assert figure.value == pytest.approx(30)
  few, many = (plan.make(params_of(command)) for command in bench.commands.values())
  counts = [
    sum(action.kind != "U" for action in made.schedule.actions[0])
    for made in (few, many)
  ]
  assert counts[1] - counts[0] == 8 * 128
  # Those that differ compute nothing.
  assert [c.flops for c in many.costs[1:-2]].count(0) == 20 - 3


def test_a_peer_and_tfpipe_are_cut_at_the_same_block():
  for sizes in benchmark_peers.SIZES:
    lengths = sizes.torch("gpipe")[-1].removeprefix("--lengths=").split(",")
    cells = plan.make(params_of(sizes.ours("gpipe"))).cells
    assert cells[0][1] == int(lengths[0])
    assert sum(map(int, lengths)) == sizes.layers + 2


@pytest.mark.parametrize("name", ["torch", "no_such_package"])
def test_what_is_not_installed_is_said(monkeypatch, capsys, name):
  monkeypatch.setattr(benchmark_peers.importlib.util, "find_spec", lambda _: None)
  assert not benchmark_peers.installed(name)
  assert f"{name} is not installed" in capsys.readouterr().out
  assert benchmark_peers.peers(Collected()) == []


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured():
  command = (sys.executable, "-m", "tools.benchmark", "--json=no/such/raw.json")
  ended = subprocess.run(command, capture_output=True, text=True, check=False)
  assert ended.returncode == 1
  assert ended.stderr == (
    "error: --json=no/such/raw.json: there is no such file or folder; make it, or name "
    "another\n"
  )
