"""Bad Params of saving and warm start: each is refused before TensorFlow starts."""

import re
import types

import pytest

from tests.program import command
from tests.program.training import IMAGE
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program import startup
from tfpipe.program.checkpoint import Checkpoint

NO_TEST = "tests.program.tiny.NoTest"
_NUMBER = "must be a number, at least 0"
_PAIR = r"must be a pair of texts \(pattern, name\)"
TABLE = [
  (IMAGE, "save_interval_minutes=-1", rf"interval_minutes=-1\.0: {_NUMBER}$"),
  (IMAGE, "save_interval_minutes=nan", rf"interval_minutes=nan: {_NUMBER}$"),
  (IMAGE, "save_interval_minutes=5m", r"minutes takes a float; got '5m'"),
  (IMAGE, "save_interval_minute=5", r"did you mean 'save_interval_minutes'\?"),
  (IMAGE, "keep_every_hours=-0.5", rf"keep_every_hours=-0\.5: {_NUMBER}$"),
  (IMAGE, "keep_every_hours=inf", rf"keep_every_hours=inf: {_NUMBER}$"),
  (IMAGE, "keep_every_hours=daily", r"hours takes a float; got 'daily'"),
  (IMAGE, "keep_best=acuracy", r"=?'acuracy': must be .*; did you mean 'accuracy'\?$"),
  (IMAGE, "keep_best=max:", r"keep_best='max:': must be empty, a metric as max:NAME"),
  (
    IMAGE,
    "keep_best=max:acuracy",
    r"keep_best='max:acuracy': must be one of the model's metrics, accuracy, "
    r"accuracy_top5, loss; did you mean 'accuracy'\?$",
  ),
  (
    IMAGE,
    "keep_best=perplexity",
    r"keep_best='perplexity': must be .* metrics, accuracy, accuracy_top5, loss$",
  ),
  (NO_TEST, "keep_best=loss", r"keep_best='loss': must be '', for there is no eval"),
  (IMAGE, "warm_start=None", r"warm_start takes a str; got None"),
  (IMAGE, "warm_start=no/such", r"warm_start='no/such': there is no such file or fo"),
  (
    IMAGE,
    "warm_start_rules=(('a',''),)",
    r"rules=\(\('a', ''\),\): must be \(\('\.\*', ''\),\) while train\.warm_start is e",
  ),
  (IMAGE, "warm_start_rules=()", r"rules=\(\): must hold at least one pair"),
  (IMAGE, "warm_start_rules=(('a',),)", _PAIR),
  (IMAGE, "warm_start_rules=(('a','b','c'),)", _PAIR),
  (IMAGE, "warm_start_rules=('a','b')", r"rules\[0\] takes a value of type tuple"),
  (
    IMAGE,
    "warm_start_rules=(('a',1),)",
    r"rules\[0\]\[1\] takes a value of type str; got 1",
  ),
  (IMAGE, "warm_start_rules=a", r"train\.warm_start_rules: a is not a literal"),
  (IMAGE, "warm_start_rules=(('a(',''),)", r"'a\(' must be a regular expression: mi"),
  (IMAGE, r"warm_start_rules=(('a','\\1'),)", r"must be a name, with no group but th"),
]


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
  def refuse(*arguments, **settings):
    raise AssertionError("TensorFlow was started")

  monkeypatch.setattr(startup, "Run", refuse)


@pytest.mark.parametrize(("name", "override", "message"), TABLE)
def test_what_is_bad_is_refused_by_name(tmp_path, name, override, message):
  arguments = (f"--logdir={tmp_path / 'run'}", f"--set=train.{override}")
  found = command.refusal(f"--model={name}", *arguments)
  assert found.startswith("error: ")
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_process_has_just_trained_in_is_left_alone(
  tmp_path, monkeypatch
):
  folder = tmp_path / "run"

  def make_run(*arguments, **settings):
    # Meanwhile another process makes the folder, trains and ends.
    checkpoint_lib.save(folder, Checkpoint(9, {}, "e", "p"), keep=1)
    return types.SimpleNamespace(devices=[], step=0)

  monkeypatch.setattr(startup, "Run", make_run)
  monkeypatch.setattr(startup, "restore_newest", lambda *arguments, **more: False)
  monkeypatch.setattr(startup, "Trainer", lambda *arguments, **more: None)
  found = command.refusal(f"--model={IMAGE}", f"--logdir={folder}", "--mode=train")
  assert found == f"error: --logdir={folder}: another process has just trained there"
  assert [path.name for path in folder.iterdir()] == ["checkpoint-00000009.npz"]
