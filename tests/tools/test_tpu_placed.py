"""The step that has a TPU core for each stage is where it should be, or it is said."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.tools.test_tpu_check import MODEL, SMALL, flags_of, run
from tfpipe.pipeline import builder
from tfpipe.trainer import model_params
from tools import tpu_placed
from tools.tpu_placed import Placed

CORES = {"devices": "/device:TPU:", "replicated_core": "/device:TPU_REPLICATED_CORE:"}

each_form = pytest.mark.parametrize("form", CORES)


def placed(form: str, *changes: str) -> Placed:
  sizes = ("pipeline.num_partitions=2", "pipeline.num_micro_batches=2")
  return tpu_placed.make(model_params(MODEL, [*SMALL, *sizes, *changes]), form)


@each_form
def test_every_action_is_on_its_core(tf, capsys, form):
  assert run(*flags_of(3, 2), "--stage=graph", f"--form={form}") == 0
  text = capsys.readouterr().out
  assert f"form {form}: unverified, not run on a TPU" in text
  assert f"the step for {CORES[form]}0, {CORES[form]}1, {CORES[form]}2: " in text
  # Forward, recomputation and backward of three stages and two micro-batches.
  assert " 18 actions; 0 missing\n" in text
  assert "; 0 actions not on their core\n" in text
  assert " 0 operations on no device\n" in text
  assert (" 0 actions that are not compiled\n" in text) == (form == "devices")
  assert "stage graph: passed, not on a TPU" in text


@each_form
@pytest.mark.parametrize(("name", "actions"), [("interleaved", 22), ("zb_h1", 14)])
def test_any_schedule_can_be_looked_at(tf, form, name, actions):
  # F, R, BW in four stages, or F, R, B, W in two, of two micro-batches; where the last
  # stage goes back at once there is no R.
  found = tpu_placed.check(placed(form, f"pipeline.schedule={name}"), "graph")
  assert not found.wrong
  assert f"{actions} actions; 0 missing" in found.lines


@each_form
def test_convolutions_with_moments_are_on_their_core(tf, form):
  changes = ("input.batch_size=8", "eval_input.batch_size=8")
  params = model_params("image.fashion_mnist.AmoebaNetTiny", changes)
  assert not tpu_placed.check(tpu_placed.make(params, form), "graph").wrong


@each_form
def test_a_cell_on_the_wrong_core_is_found(tf, monkeypatch, form):
  right = builder._Step._device

  def swapped(self, copy):
    return right(self, copy._replace(stage=1 - copy.stage))

  monkeypatch.setattr(builder._Step, "_device", swapped)
  (wrong,) = tpu_placed.check(placed(form), "graph").wrong
  assert "; 12 actions not on their core: " in wrong
  assert f"stage0/micro0/backward/ is on {CORES[form]}1, not on {CORES[form]}0" in wrong


@each_form
@pytest.mark.parametrize(
  ("method", "kind"), [("_backward", "backward"), ("_recompute", "recompute")]
)
def test_what_has_no_core_is_found(tf, monkeypatch, form, method, kind):
  right = getattr(builder._Step, method)

  def nowhere(self, copy, m):
    with tf.device(None):
      right(self, copy, m)

  monkeypatch.setattr(builder._Step, method, nowhere)
  (wrong,) = tpu_placed.check(placed(form), "graph").wrong
  assert "; 4 actions not on their core: " in wrong
  assert f"stage0/micro0/{kind}/ is on no device, not on {CORES[form]}0" in wrong


def test_an_action_that_is_not_compiled_is_found(tf):
  subject = placed("devices")
  subject.params.pipeline.xla = False
  (wrong,) = tpu_placed.check(subject, "graph").wrong
  assert wrong.startswith("12 actions that are not compiled: stage0/micro0/forward/")


# In a process of its own: how XLA compiles is fixed when it is first used.
_COMPILED = """
from tests.tools.test_tpu_placed import placed
from tfpipe.pipeline import tie
from tools import tpu_check, tpu_placed
found = tpu_placed.check(placed("replicated_core"), "hlo")
assert not found.wrong, found.wrong
print(*found.lines, sep="\\n")
tie.after = lambda token, tensor: tensor
(wrong,) = tpu_placed.check(placed("replicated_core"), "hlo").wrong
print(wrong)
"""


def test_compiled_as_a_whole_it_recomputes_and_a_dropped_tie_is_found():
  ended = subprocess.run(
    [sys.executable, "-c", _COMPILED], capture_output=True, text=True, check=False
  )
  assert ended.returncode == 0, ended.stderr
  products, again, dropped = ended.stdout.splitlines()
  assert re.fullmatch(r"\d+ products and convolutions, 0 not on their core", products)
  (number, kept) = re.findall(r"\d+", again)
  assert number == kept != "0"
  assert dropped == f"{number} of them recompute, 0 do when all is optimized"


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (
      ["--stage=graph", "--form=device"],
      "--form = 'device': must be one of spmd, devi",
    ),
    (
      ["--stage=virtual", "--form=devices"],
      "--stage = 'virtual': must be graph with --form=devices",
    ),
    (
      ["--stage=aot", "--form=replicated_core"],
      "--stage = 'aot': must be graph or hlo with --form=replicated_core",
    ),
    (
      ["--stage=hlo", "--form=replicated_core", "--remat=layer"],
      "pipeline.remat='layer': must be 'none' or 'cell' with --form=replicated_core",
    ),
  ],
)
def test_what_cannot_be_looked_at_is_refused(arguments, said):
  ended = run(f"--model={MODEL}", *arguments)
  assert isinstance(ended, str)
  assert said in ended
