"""The README's first day: every command runs as printed, and does what is said."""

import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.layers import profiler
from tests.program import training
from tfpipe import registry
from tfpipe.cost import ArraySpec
from tfpipe.input.image_input import EmbeddedImageInput

ROOT = pathlib.Path(__file__).parents[1]
TRAINER = "python -m tfpipe.trainer --model=my_params.Noisy "
CONTINUE = "--logdir=logs/noisy --max_steps=60 --num_partitions=3 --schedule=1f1b"


def python_blocks(text):
  return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def section():
  text = (ROOT / "README.md").read_text()
  return re.findall(r"^## A first day\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def folder(section, tmp_path_factory):
  """Gives the newcomer's folder, with both files as the README has them."""
  made = tmp_path_factory.mktemp("day")
  sample = python_blocks((ROOT / "README.md").read_text())[0]
  layer, serve = python_blocks(section)
  (made / "my_params.py").write_text(f"{sample}\n{layer}")
  (made / "serve.py").write_text(serve)
  return made


@pytest.fixture(scope="module")
def shown(section, folder):
  """Runs all commands of the section in order; gives what each printed."""
  commands = re.findall(r"`(python [^`]+)`", section)
  assert len(commands) == 9
  found = {}
  for command in commands:
    before = set(folder.rglob("*"))
    found[command] = printed(command, folder)
    if "--dry_run" in command:
      assert set(folder.rglob("*")) == before
  return found


def printed(command, folder):
  program, *arguments = shlex.split(command)
  assert program == "python"
  own = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
  }
  ended = subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    cwd=folder,
    env={**os.environ, **own},
    check=False,
  )
  assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
  return ended.stdout


def test_the_plan_cuts_before_the_new_layer(shown):
  lines = [line.split() for line in shown[TRAINER + "--mode=plan"].splitlines()]
  first, second = (line for line in lines if "first" in line or "noise" in line)
  assert first[:4] == ["0", "1", "first", "first"]
  assert "84.7%" in first
  assert second[:4] == ["1", "4", "noise", "loss"]


def test_the_dry_run_says_the_loss_of_the_first_step(shown):
  text = shown[TRAINER + "--dry_run"]
  assert re.search(r"^eval of one batch: loss=2\.7", text, re.MULTILINE)
  assert re.search(r"^step=1/\d+ loss=2\.", text, re.MULTILINE)
  assert text.endswith("nothing was written\n")


def test_training_saves_and_evaluates_and_another_cut_goes_on_from_there(shown):
  first = shown[TRAINER + "--logdir=logs/noisy --max_steps=30"]
  assert "devices /device:CPU:0, /device:CPU:1\n" in first
  assert "saved logs/noisy/checkpoint-00000030.npz\n" in first
  loss = float(re.findall(r"^eval step=30 loss=(\S+)", first, re.M)[0])
  assert loss == pytest.approx(0.73, abs=0.01)
  then = shown[TRAINER + CONTINUE]
  assert "devices /device:CPU:0, /device:CPU:1, /device:CPU:2\n" in then
  assert "restored step 30 from logs/noisy\nchanged since then:\n" in then
  assert "+ pipeline.schedule : '1f1b'\n" in then
  assert "saved logs/noisy/checkpoint-00000060.npz\n" in then


def test_evaluation_alone_finds_the_same_loss(shown):
  trained = shown[TRAINER + CONTINUE].splitlines()[-1]
  assert re.fullmatch(r"eval step=60 loss=0\.6[45]\d*", trained)
  alone = shown[TRAINER + "--logdir=logs/noisy --mode=eval"].splitlines()[-1]
  assert alone == trained


def test_what_is_served_has_the_loss_of_evaluation(shown, folder, tf):
  path = "logs/noisy/export/60"
  text = shown[TRAINER + "--logdir=logs/noisy --mode=export"]
  assert f"exported {path}: image float32 [n, 28, 28, 1] -> logits float32" in text
  serve = tf.saved_model.load(str(folder / path)).signatures["serving_default"]
  total = weight = 0.0
  test = EmbeddedImageInput.EvalParams().Set(batch_size=64).Instantiate()
  for batch in test.dataset():
    logits = serve(image=batch["image"])["logits"].numpy().astype(np.float64)
    errors = np.log(np.exp(logits).sum(axis=1))
    errors -= logits[np.arange(len(logits)), batch["label"]]
    total += errors @ batch["weight"].numpy()
    weight += batch["weight"].numpy().sum()
  assert weight == 500
  expected = training.metrics(folder / "logs/noisy", "eval")[-1]["loss"]
  assert total / weight == pytest.approx(expected, rel=1e-5)


def test_a_box_is_a_bag_for_a_program_that_imports_tensorflow_alone(shown, folder):
  assert re.findall(r"import (\w+)", (folder / "serve.py").read_text()) == [
    "tensorflow"
  ]
  assert shown["python serve.py"] == "[8]\n"


def test_the_continued_run_is_one_that_was_never_stopped(shown, folder):
  parts, whole = folder / "logs/noisy", folder / "logs/whole"
  assert training.newest(whole).step == 60
  assert training.differences(training.newest(parts), training.newest(whole)) == []
  steps = [10, 20, 30, 40, 50, 60]
  assert [record["step"] for record in training.untimed(whole)] == steps
  assert training.untimed(parts) == training.untimed(whole)


def test_both_runs_can_be_looked_at_and_compared(shown, folder):
  table = shown["python -m tools.compare_runs logs/noisy logs/whole"]
  params, values, _ = table.split("\n\n")
  assert [line.split() for line in params.splitlines()] == [
    ["Params", "noisy", "whole"],
    ["pipeline.num_partitions", "3", "1"],
    ["pipeline.schedule", "'1f1b'", "'gpipe'"],
  ]
  for kind in ("train", "eval"):
    ((noisy, whole),) = re.findall(rf"^{kind} loss +(\S+) +(\S+)$", values, re.M)
    assert noisy == whole
  assert "<h1>noisy, whole" in (folder / "compare.html").read_text()
  page = (folder / "logs/noisy/report.html").read_text()
  for title in ("Cut", "Memory of each device", "Schedule", "Loss by step"):
    assert f"<h2>{title}" in page


def test_the_new_layer_costs_what_it_says(folder, tf, monkeypatch):
  monkeypatch.setattr(registry, "_experiments", {})
  layer = runpy.run_path(str(folder / "my_params.py"))["Noise"]
  params, spec = layer.Params().Set(name="noise"), ArraySpec((16, 128))
  cost = layer.FPropMeta(params, spec)
  traced = profiler.trace(tf, params, [spec])
  assert (cost.flops, 0) == profiler.profiled_flops(tf, traced)
  assert cost.activation_bytes == profiler.kept_bytes(tf, traced)
