"""Params of the guards that cannot be are refused before TensorFlow starts."""

import re

import pytest

from tests.program import command
from tests.program.training import IMAGE
from tfpipe.program import startup

TABLE = [
  (("train.loss_spike=x",), r"^error: train\.loss_spike takes a float; got 'x'$"),
  (("train.loss_spike=-2",), r"train\.loss_spike=-2\.0: must be 0, or a finite number"),
  (("train.loss_spike=1",), r"train\.loss_spike=1\.0: must be 0, or a .* above 1$"),
  (("train.loss_spike=0.5",), r"train\.loss_spike=0\.5: must be 0, or a .* above 1$"),
  (("train.loss_spike=inf",), r"train\.loss_spike=inf: must be 0, or a finite number"),
  (("train.loss_spike=nan",), r"train\.loss_spike=nan: must be 0, or a finite number"),
  (
    ("train.on_loss_spike=wran", "train.loss_spike=2"),
    r"train\.on_loss_spike='wran': must be one of warn, skip, stop; did you mean 'w",
  ),
  (
    ("train.on_loss_spike=skip",),
    r"train\.on_loss_spike='skip' has no effect with train\.loss_spike=0, which looks",
  ),
  (("train.on_loss_spike=",), r"train\.on_loss_spike='': must be one of warn, skip,"),
  (
    ("train.step_timeout_secs=-1",),
    r"train\.step_timeout_secs=-1\.0: must be 0, or a finite number above 0$",
  ),
  (
    ("train.step_timeout_secs=1m",),
    r"train\.step_timeout_secs takes a float; got '1m'",
  ),
  (
    ("train.step_timeout=5",),
    r"has no parameter 'step_timeout'; did you mean 'step_timeout_secs'\?$",
  ),
]


@pytest.mark.parametrize(("overrides", "message"), TABLE)
def test_what_cannot_be_is_refused_by_name(tmp_path, monkeypatch, overrides, message):
  monkeypatch.setattr(startup, "Run", None)
  arguments = [f"--set={override}" for override in overrides]
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}", *arguments)
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []
