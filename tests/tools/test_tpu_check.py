"""What TPU cores would run is checked, and what is broken is found."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from absl import flags
from absl.testing import flagsaver

from tfpipe.layers.feed_forward import FeedForward
from tfpipe.schedule.ticks import IDLE
from tfpipe.spmd.flat_update import FlatUpdate
from tfpipe.spmd.tick import Device
from tfpipe.trainer import model_params
from tools import tpu_check as tool
from tools import tpu_graph, tpu_subject, tpu_virtual
from tools.tpu_subject import Subject

MODEL = "lm.shakespeare.Char"
SMALL = [
  *(f"task.{n}" for n in ("model_dim=8", "ff_dim=16", "num_heads=2", "num_layers=4")),
  "task.sequence_length=8",
  *(f"{o}.{s}" for o in ("input", "eval_input") for s in ("seq_len=8", "batch_size=8")),
]


def run(*arguments: str) -> int | str | None:
  """Does what `python -m tools.tpu_check` does; gives what it ends with."""
  with flagsaver.flagsaver():
    rest = flags.FLAGS(["tpu_check", *arguments])
    try:
      tool.main(rest)
    except SystemExit as ended:
      return ended.code
  return 0


def subject(stages: int = 3, number: int = 2, *fields: str) -> Subject:
  sizes = [f"num_partitions={stages}", f"num_micro_batches={number}", *fields]
  changes = [*SMALL, *(f"pipeline.{size}" for size in sizes)]
  return tpu_subject.make(model_params(MODEL, changes))


def flags_of(stages: int, number: int) -> list[str]:
  sets = [f"--set={change}" for change in SMALL]
  sizes = [f"--num_partitions={stages}", f"--num_micro_batches={number}"]
  return [f"--model={MODEL}", *sets, *sizes]


@pytest.mark.parametrize(
  ("stages", "number", "name"), [(1, 1, "gpipe"), (2, 4, "1f1b"), (4, 2, "eager_1f1b")]
)
def test_the_virtual_run_passes(tf, capsys, stages, number, name):
  given = [*flags_of(stages, number), f"--schedule={name}", "--stage=virtual"]
  assert run(*given) == 0
  text = capsys.readouterr().out
  assert f"K={stages}, M={number}, {name}" in text
  assert f"{stages} virtual CPU devices" in text
  assert "stage virtual: passed, not on a TPU" in text


def test_two_pipelines_do_what_one_device_does(tf, capfd):
  given = [*flags_of(2, 4), "--set=pipeline.num_replicas=2", "--stage=virtual"]
  assert run(*given) == 0
  shown = capfd.readouterr()
  assert "R=2, K=2, M=4, gpipe+R in 5 ticks" in shown.out
  assert "4 virtual CPU devices" in shown.out
  assert not shown.err


def test_the_graph_of_a_strategy_passes(tf, capsys):
  assert run(*flags_of(3, 2), "--stage=graph") == 0
  text = capsys.readouterr().out
  assert "TPUStrategy for 3 described cores" in text
  assert "6 layers, forward and backward; 0 missing" in text
  assert "CollectivePermute" in text


def test_the_loop_over_the_steps_of_a_call_is_looked_at(tf, capsys):
  assert run(*flags_of(2, 2), "--set=train.steps_per_call=5", "--stage=graph") == 0
  text = capsys.readouterr().out
  assert "described cores built a call of 5 steps" in text
  assert "6 layers, forward and backward; 0 missing" in text


def test_where_one_step_of_a_call_is_looked_at_that_is_said(tf, capsys):
  given = [*flags_of(2, 2), "--set=train.steps_per_call=5"]
  assert run(*given, "--stage=virtual") == 0
  assert "\n  of the 5 steps of a call, one\n" in capsys.readouterr().out


def swapped(method: Callable) -> Callable:
  """Gives two stages each other's work."""

  def other(self: Device, *args) -> Callable:
    branch = method(self, *args)
    return lambda k: branch({0: 1, 1: 0}.get(k, k))

  return other


def test_a_cell_on_the_wrong_stage_is_found(tf, monkeypatch):
  monkeypatch.setattr(Device, "backward", swapped(Device.backward))
  found = tpu_graph.check(subject())
  assert any("in another stage's branch" in text for text in found.wrong)
  assert any("stage1" in text and "branch of stage 0" in text for text in found.wrong)


def test_a_dynamic_shape_within_a_layer_is_found(tf, monkeypatch):
  right = FeedForward.FProp

  def fprop(self, theta, x):
    return right(self, theta, x) + tf.reduce_sum(tf.boolean_mask(x, x > 0))

  monkeypatch.setattr(FeedForward, "FProp", fprop)
  found = tpu_graph.check(subject(2))
  assert any("boolean_mask" in text for text in found.wrong), found.wrong


def test_a_stage_that_takes_another_ones_place_is_found(tf, monkeypatch):
  def rotated(self: Device, m, make):
    count = self._last + 1
    place = tf.math.floormod(self._stage + 1, count)
    branches = [lambda k=k: make(k) for k in range(count + 1)]
    return tf.switch_case(tf.where(tf.equal(m, IDLE), count, place), branches)

  monkeypatch.setattr(Device, "_switch", rotated)
  found = tpu_virtual.check(subject())
  assert any("gradients" in text for text in found.wrong)


def test_a_missing_division_by_the_micro_batches_is_found(tf, monkeypatch):
  right = FlatUpdate.run

  def without(self, stage, state, sums, weight, *others):
    return right(self, stage, state, sums, weight / 2, *others)

  monkeypatch.setattr(FlatUpdate, "run", without)
  found = tpu_virtual.check(subject())
  assert any("losses, norm and rate" in text for text in found.wrong)
  assert not any("gradients" in text for text in found.wrong)


# In a process of its own: how XLA compiles is fixed when it is first used.
_COMPILED = """
from tests.tools.test_tpu_check import subject
from tfpipe.spmd import stage
from tools import tpu_check, tpu_hlo
assert not tpu_hlo.check(subject(3)).wrong
# The last layer's recomputation waits for no gradient.
layers = subject(2, 2, "remat=layer", "schedule=1f1b")
assert not tpu_hlo.check(layers).wrong, tpu_hlo.check(layers).wrong
stage.tied = lambda tensors, dys: list(tensors)
(wrong,) = tpu_hlo.check(subject(2)).wrong
print(wrong)
"""


def test_compiled_it_recomputes_and_a_dropped_tie_is_found():
  ended = subprocess.run(
    [sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=False
  )
  assert ended.returncode == 0, ended.stderr
  assert ended.stdout.startswith("core 0, optimized, 2 micro-batches")


def test_what_cannot_be_run_says_so_and_has_a_code_of_its_own(capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  assert run(*flags_of(2, 2), "--stage=aot") == tool.UNAVAILABLE == 3
  text = capsys.readouterr().out
  assert "stage aot: NOT RUN: jax and libtpu are not installed: pip install" in text
  assert "-e '.[tpu-check]'; nothing has been compiled" in text


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (["--stage=virtual"], "--model is missing"),
    ([f"--model={MODEL}"], "--stage is missing: must be one of graph, hlo"),
    ([f"--model={MODEL}", "--stage=grap"], "did you mean 'graph'"),
    ([f"--model={MODEL}", "--stage=hlo", "--devices=cpu"], "--devices has no effect"),
    (
      [f"--model={MODEL}", "--stage=hlo", "--schedule=zb_h1"],
      "zb_h1.* does not line up",
    ),
    (
      [f"--model={MODEL}", "--stage=hlo", "--schedule=interleaved"],
      "schedule interleaved.* does not line up",
    ),
    ([f"--model={MODEL}", "--stage=hlo", "x"], "unexpected arguments: x"),
    # Of no line of the tool's own.
    (["--model=lm.shakespeare.Chr", "--stage=hlo"], "^error: there is no experiment"),
    (
      [f"--model={MODEL}", "--stage=hlo", "--set=train.max_step=1"],
      "^error: train.max_step: train has no parameter 'max_step'; did you",
    ),
    (
      ["--model=lm.documents.Bucketed", "--stage=hlo"],
      "shapes: must be one with pipeline.backend='spmd'",
    ),
  ],
)
def test_bad_input_is_refused_at_the_door(arguments, said):
  ended = run(*arguments)
  assert isinstance(ended, str)
  assert re.search(said, ended), ended


@pytest.mark.parametrize(
  ("change", "said"),
  [
    ("pipeline.xla=True", "pipeline.xla=True: must be False"),
    (
      "pipeline.devices=CPU:0,CPU:1",
      "pipeline.devices='CPU:0,CPU:1': must be 'auto' or 'cpu'",
    ),
    ("pipeline.intra_op_threads=1", "intra_op_threads=1: must be 0"),
    ("train.loss_spike=2.0", "train.loss_spike=2.0: must be 0"),
    ("train.deterministic=True", "train.deterministic=True: must be False"),
    ("pipeline.compute_dtype=float16", "compute_dtype='float16': must be 'float32'"),
  ],
)
def test_settings_that_one_program_cannot_have_are_refused(tf, change, said):
  ended = run(*flags_of(2, 2), f"--set={change}", "--stage=virtual")
  assert isinstance(ended, str)
  assert said in ended
