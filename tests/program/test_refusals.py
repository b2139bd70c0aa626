"""Bad flags and Params: each is refused before TensorFlow starts."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.program import command, refusals_fields, refusals_files
from tests.program.refusals import INPUT, PIPELINE, TABLE, TRAIN
from tests.program.training import IMAGE, TEXT
from tfpipe.program import startup

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tensorflow_must_not_start(monkeypatch):
  def refuse(*arguments, **settings):
    raise AssertionError("TensorFlow was started")

  monkeypatch.setattr(startup, "Run", refuse)


@pytest.mark.parametrize(
  ("name", "arguments", "message"), [*TABLE, *refusals_fields.TABLE]
)
def test_what_is_bad_is_refused_by_name_before_tensorflow_starts(
  tmp_path, name, arguments, message
):
  found = command.refusal(f"--model={name}", f"--logdir={tmp_path}", *arguments)
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("file", "content", "name", "arguments", "message"), refusals_files.TABLE
)
def test_a_bad_file_is_refused_by_name_before_tensorflow_starts(
  tmp_path, file, content, name, arguments, message
):
  path, logdir = tmp_path / file, tmp_path / "run"
  if content is not None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
  arguments = [text.format(file=path, folder=tmp_path) for text in arguments]
  if "--mode=plan" not in arguments:
    arguments.append(f"--logdir={logdir}")
  found = command.refusal(f"--model={name}", *arguments)
  assert re.search(message, found), found
  assert found.count("\n") == 0
  assert not logdir.exists()


def test_the_tables_are_long():
  rows = [*TABLE, *refusals_fields.TABLE]
  assert len(rows) == len(set(map(str, rows)))
  assert len(rows) >= 200
  assert len(refusals_files.TABLE) >= 80


@pytest.mark.parametrize("mode", ["plan", "inspect"])
def test_plan_and_inspect_refuse_what_training_refuses(mode):
  for argument, message in (*PIPELINE, *TRAIN, *INPUT):
    found = command.refusal(f"--model={IMAGE}", f"--mode={mode}", argument)
    assert re.search(message, found), found


@pytest.mark.parametrize("mode", ["plan", "inspect"])
def test_logdir_is_refused_where_it_has_no_effect(tmp_path, mode):
  arguments = (f"--model={TEXT}", f"--logdir={tmp_path}", f"--mode={mode}")
  assert f"--logdir has no effect with --mode={mode}" in command.refusal(*arguments)


@pytest.mark.parametrize("mode", ["train_and_eval", "train", "eval"])
def test_logdir_is_required_where_there_is_something_to_save_or_load(mode):
  arguments = (f"--model={TEXT}", f"--mode={mode}")
  assert f"--logdir is missing; --mode={mode} needs a" in command.refusal(*arguments)


@pytest.mark.parametrize("rest", ["", "/below"])
def test_a_logdir_that_is_a_file_or_below_one_is_refused(tmp_path, rest):
  (tmp_path / "file").write_text("precious")
  logdir = f"--logdir={tmp_path}/file{rest}"
  found = command.refusal(f"--model={TEXT}", logdir)
  assert found == f"error: {logdir}: {tmp_path}/file is a file, not a folder"
  assert (tmp_path / "file").read_text() == "precious"


def test_a_logdir_in_the_home_folder_of_nobody_is_refused():
  found = command.refusal(f"--model={TEXT}", "--logdir=~nobody.here/run")
  place = "~nobody.here must be the home folder of a user of this machine"
  assert found == f"error: --logdir=~nobody.here/run: {place}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("rest", ["", "/below"])
def test_a_logdir_that_cannot_be_written_is_refused(tmp_path, rest):
  tmp_path.chmod(0o500)
  found = command.refusal(f"--model={TEXT}", f"--logdir={tmp_path}{rest}")
  assert f"{tmp_path} is not writable" in found


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    (
      "--model=lm.shakespeare.Chr",
      "there is no experiment 'lm.shakespeare.Chr'; nearest are: lm.shakespeare.Char",
    ),
    ("--schedul=x", "there is no flag --schedul; did you mean 'schedule'?"),
    ("--max_steps=1e3", "--max_steps=1e3: must be a whole number"),
  ],
)
def test_a_refusal_is_one_line_on_stderr(argument, message):
  ended = subprocess.run(
    [sys.executable, "-m", "tfpipe.trainer", argument, "--mode=plan"],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  assert ended.returncode == 1
  assert ended.stdout == ""
  assert ended.stderr == f"error: {message}\n"


@pytest.mark.parametrize(
  ("name", "why"),
  [
    ("no/such", "there is no such file or folder; make it, or name another"),
    ("", "this is a folder where a file must be; move it away"),
  ],
)
def test_a_file_of_flags_that_cannot_be_read_is_named(tmp_path, name, why):
  path = tmp_path / name
  assert command.refusal(f"--flagfile={path}") == f"error: --flagfile={path}: {why}"
