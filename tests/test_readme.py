"""The README's commands and its sample run as printed."""

import dataclasses
import importlib
import pathlib
import re
import subprocess
import sys

import pytest
from absl.testing import flagsaver

from tfpipe import layer_times, network, registry, schedule, trainer
from tfpipe import plan as plan_lib
from tfpipe.program import report
from tfpipe.program.run import Run
from tfpipe.schedule import text

README = pathlib.Path(__file__).parents[1] / "README.md"


def blocks(language):
  pattern = rf"^```{language}\n(.*?)^```$"
  return re.findall(pattern, README.read_text(), re.MULTILINE | re.DOTALL)


def commands():
  """Every trainer command of the README that names an experiment of the repository."""
  found = re.findall(
    r"python -m tfpipe\.trainer (--model=\S+[^`\n]*)", README.read_text()
  )
  return [line.split() for line in found if "my_params" not in line]


@pytest.fixture
def sample(tmp_path, monkeypatch):
  """The README's params file, importable as my_params."""
  code = blocks("python")[0]
  (tmp_path / "my_params.py").write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  importlib.invalidate_caches()
  return "my_params.Tiny"


def test_the_sample_params_file_trains_in_two_cells(tf, sample):
  params = trainer.model_params(sample, ["pipeline.devices=cpu"])
  run = Run(params, plan_lib.make(params))
  assert len(set(run.devices)) == 2
  step = run.train_function()
  losses = []
  for batch in run.input.dataset().take(30):
    total, weight = step(batch)["metrics"]["loss"]
    losses.append(float(total) / float(weight))
  # Ten classes start at log(10) = 2.30.
  assert abs(losses[0] - 2.3) < 0.5
  assert losses[-1] < losses[0] - 0.5


def test_the_costs_of_the_sample_are_those_of_its_products(sample):
  params = trainer.model_params(sample, [])
  plan = plan_lib.make(params)
  products = [2 * 16 * 784 * 128, 2 * 16 * 128 * 128, 2 * 16 * 128 * 10, 0]
  assert [cost.matmul_flops for cost in plan.costs] == products
  weights = 785 * 128 + 129 * 128 + 129 * 10
  assert sum(cost.param_count for cost in plan.costs) == weights


@pytest.fixture
def files(tmp_path, monkeypatch):
  """What other commands of the README write, in the current folder."""
  monkeypatch.chdir(tmp_path)
  made = schedule.make("1f1b", 2, 4)
  pathlib.Path("mine.csv").write_text(text.to_csv(made))
  char = network.Network(trainer.model_params("lm.shakespeare.Char", []))
  times = layer_times.from_costs(char.costs(8), flops_per_sec=1e10)
  layer_times.write("char.json", dataclasses.replace(times, device="CPU", batch=4))


def test_the_first_screen_is_as_printed():
  whole = README.read_text()
  (shown,) = re.findall(
    r"^```\n(experiment .*?\n)```$", whole, re.MULTILINE | re.DOTALL
  )
  params = trainer.model_params(shown.split()[1], [])
  screen = report.first_screen(params, "", plan_lib.make(params))
  assert shown == f"{screen}\ndevices /device:CPU:0, /device:CPU:1\n"


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
@pytest.mark.usefixtures("files")
def test_every_command_is_understood_and_can_be_planned(arguments):
  with flagsaver.flagsaver():
    assert trainer.FLAGS(["trainer", *arguments]) == ["trainer"]
    params = trainer.model_params(trainer.FLAGS.model, trainer.overrides())
    plan = plan_lib.make(params)
  assert plan.timeline.makespan > 0


def test_a_schedule_of_ones_own_is_made_as_shown(tmp_path):
  (line,) = re.findall(r'^python -c "(.*)" > mine.csv$', README.read_text(), re.M)
  run = subprocess.run(
    [sys.executable, "-c", line], capture_output=True, text=True, check=True
  )
  assert text.from_csv(run.stdout) == schedule.make("1f1b", 2, 4)


def test_every_experiment_that_is_named_exists():
  names = re.findall(r"`((?:image|lm)\.\w+\.\w+)`", README.read_text())
  assert len(names) >= 6
  for name in names:
    registry.Get(name)
