"""Data that is not there: found before any weight is made, and where it is read."""

import re

import pytest

from tests.program import command
from tests.program.training import IMAGE
from tfpipe.program import startup
from tfpipe.program.lock import lock

CHAR = "lm.shakespeare.Char"
FASHION = "image.fashion_mnist.AmoebaNetTiny"
# 557M weights: 30 seconds and 7 GiB.
IMAGENET = "image.paper.AmoebaNetB18x512"
CHECKPOINT = "checkpoint-00000001.npz"


class MadeError(Exception):
  """The run was made."""


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
  def refuse(*arguments, **settings):
    raise MadeError

  monkeypatch.setattr(startup, "Run", refuse)


NO_TEXT = r"^error: {}: CharTextInput\.text_dir: no \*\.txt in no/such/"
NO_FOLDER = r"^error: input: TfdsImageInput\.dataset = 'imagenet20.*' is not in no/such"


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    (CHAR, ("--set=input.text_dir=no/such",), NO_TEXT.format("input") + "train;"),
    (
      CHAR,
      ("--set=eval_input.text_dir=no/such",),
      NO_TEXT.format("eval_input") + "test;",
    ),
    (
      IMAGENET,
      ("--set=input.data_dir=no/such",),
      rf"{NO_FOLDER}; .* --dataset=imagenet2012 --data_dir=no/such --manual_dir=",
    ),
    (
      IMAGENET,
      ("--set=input.data_dir=no/such", "--set=input.dataset=imagenet2011"),
      rf"{NO_FOLDER}, and tfds knows no 'imagenet2011'; did you mean 'imagenet2012'\?$",
    ),
    (
      IMAGE,
      ("--set=input.batch_size=30",),
      "^error: input: .*batch_size = 30 is more than the 29 exam",
    ),
    (
      IMAGE,
      ("--set=eval_input.batch_size=14",),
      "^error: eval_input: .*batch_size = 14 is more than the 13 examples of split "
      "'test'; set it to 13 or l",
    ),
    (
      IMAGE,
      ("--mode=eval",),
      "^error: --logdir=.*: there is no checkpoint to evaluate$",
    ),
  ],
)
def test_what_is_missing_is_found_before_any_weight_is_made(
  tmp_path, name, arguments, message
):
  logdir = tmp_path / "run"
  found = command.refusal(f"--model={name}", f"--logdir={logdir}", *arguments)
  assert re.search(message, found), found
  assert not logdir.exists()


def test_a_folder_that_another_process_holds_is_found_before_any_weight_is_made(
  tmp_path,
):
  with lock(tmp_path):
    found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}")
  assert f"--logdir={tmp_path}: another process is training there" in found
  with pytest.raises(MadeError):
    command.run(f"--model={IMAGE}", f"--logdir={tmp_path}")


def test_a_shipped_file_that_is_not_there_is_missing_data(tmp_path, monkeypatch):
  monkeypatch.setattr("tfpipe.input.embedded.DATA_DIR", tmp_path)
  for name in (CHAR, FASHION):
    found = command.refusal(f"--model={name}", f"--logdir={tmp_path}")
    assert re.search(
      rf"^error: input: {tmp_path}/.*z is missing; install tfpipe again", found
    )


@pytest.mark.parametrize(
  ("mode", "missing"), [("train", "eval_input"), ("eval", "input")]
)
def test_data_that_the_mode_does_not_read_may_be_missing(tmp_path, mode, missing):
  (tmp_path / CHECKPOINT).touch()
  arguments = (f"--logdir={tmp_path}", f"--set={missing}.text_dir=no/such")
  with pytest.raises(MadeError):
    command.run(f"--model={CHAR}", f"--mode={mode}", *arguments)
