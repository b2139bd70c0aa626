"""`--deterministic`: the same seed gives the same bits, in any process."""

import pathlib
import subprocess
import sys

import pytest

from tests.program import command, training
from tests.program.training import IMAGE
from tfpipe import trainer

ROOT = pathlib.Path(__file__).parents[2]
ARGUMENTS = ("--mode=train", "--max_steps=3")
# What TensorFlow says of its own state.
_PROGRAM = """
import sys
from absl import flags
from tensorflow.python.util import _pywrap_determinism
from tfpipe import trainer
assert not _pywrap_determinism.is_enabled()
trainer.main(trainer.parse_flags(["trainer", *sys.argv[1:]]))
assert _pywrap_determinism.is_enabled()
"""


def test_a_deterministic_run_gives_the_bits_of_a_plain_one_on_cpus(tf, tmp_path):
  arguments = [f"--model={IMAGE}", *ARGUMENTS]
  ended = subprocess.run(
    [
      *(sys.executable, "-c", _PROGRAM, *arguments),
      *("--deterministic", f"--logdir={tmp_path / 'deterministic'}"),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 0, ended.stderr
  assert "+ train.deterministic : True" in ended.stdout
  training.train(tmp_path / "plain", IMAGE, "train.max_steps=3")
  found, plain = (training.newest(tmp_path / n) for n in ("deterministic", "plain"))
  assert found.step == 3
  assert not training.differences(found, plain)


def test_the_flag_is_short_for_the_field():
  for argument, value in (("--deterministic", True), ("--nodeterministic", False)):
    with command.flagsaver.flagsaver():
      trainer.parse_flags(["trainer", argument])
      assert trainer.overrides() == [f"train.deterministic={value}"]


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--deterministic=2", r"^error: --deterministic=2: must be true or false$"),
    ("--determinstic", r"no flag --determinstic; did you mean 'deterministic'\?$"),
  ],
)
def test_what_is_neither_true_nor_false_is_refused(argument, message):
  with pytest.raises(SystemExit, match=message):
    trainer.parse_flags(["trainer", argument])


def test_the_field_is_checked():
  params = trainer.model_params(IMAGE, [])
  params.train.deterministic = 1
  with pytest.raises(ValueError, match=r"^train\.deterministic=1: must be True or Fal"):
    training.plan_lib.make(params)
