"""Which flags go with which mode, and what each mode needs. Nothing is started."""

import re

import pytest

from tests.program import command
from tests.program.tiny import Image
from tests.program.training import IMAGE, TEXT
from tfpipe import registry
from tfpipe.layers.base import Layer
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.program import modes

FLAGS = {
  "logdir": "logs",
  "dry_run": "true",
  "profile": "2:1",
  "watch": "true",
  "prompt": "x",
  "num_tokens": "3",
  "temperature": "0.5",
  "top_k": "2",
  "decode_seed": "1",
  "hardware": "h100",
  "search": "true",
  "inspect": "changed",
  "max_restarts": "2",
}


def test_every_flag_of_some_modes_is_in_the_table():
  assert FLAGS.keys() == modes._ONLY.keys()


@pytest.mark.parametrize("mode", modes.MODES)
@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_without_effect_in_a_mode_is_refused(tmp_path, mode, flag):
  allowed = modes._ONLY[flag]
  if mode in allowed:
    modes.check(mode, {flag, "hardware"} if flag == "search" else {flag})
    return
  found = command.refusal(
    f"--model={IMAGE}", f"--mode={mode}", f"--{flag}={FLAGS[flag]}"
  )
  names = " or ".join(allowed)
  assert found == (
    f"error: --{flag} has no effect with --mode={mode}; it is for --mode={names}"
  )


@pytest.mark.parametrize("flag", ["top_k", "decode_seed", "num_tokens", "temperature"])
def test_a_flag_with_its_default_or_zero_is_given_too(tmp_path, flag):
  where = (f"--model={IMAGE}", f"--logdir={tmp_path}")
  found = command.refusal(*where, f"--{flag}=0")
  assert (
    f"--{flag} has no effect with --mode=train_and_eval; it is for --mode=d" in found
  )


def test_a_flag_that_is_switched_off_has_no_effect_to_miss(capsys):
  off = ("--nosearch", "--nowatch", "--dry_run=false")
  command.run(f"--model={IMAGE}", "--mode=plan", *off)
  assert "predicted bubble" in capsys.readouterr().out


@pytest.mark.parametrize("mode", modes.DOING)
def test_a_folder_is_needed_where_there_is_something_to_save_or_load(mode):
  found = command.refusal(f"--model={TEXT}", f"--mode={mode}")
  assert found == f"error: --logdir is missing; --mode={mode} needs a folder"


def test_a_model_that_does_not_exist_is_named_before_a_missing_folder():
  found = command.refusal("--model=nope.Nope")
  assert found.startswith("error: there is no experiment 'nope.Nope'; ")


@pytest.mark.parametrize("verb", ["decode with", "export", "evaluate"])
def test_a_folder_without_checkpoint_is_refused(tmp_path, verb):
  mode = {"decode with": "decode", "evaluate": "eval"}.get(verb, verb)
  found = command.refusal(
    "--model=lm.shakespeare.Char", f"--mode={mode}", f"--logdir={tmp_path}"
  )
  assert found == f"error: --logdir={tmp_path}: there is no checkpoint to {verb}"
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      ("--dry_run", "--profile=2:1"),
      "--profile has no effect with --dry_run, which runs one step",
    ),
    (("--mode=plan", "--search"), "--search needs --hardware: its memory bounds the"),
    (
      ("--mode=inspect", "--inspect=variable"),
      "--inspect=variable: must be one of params, changed, variables, schedule, or "
      "diff:EXPERIMENT; did you mean 'variables'?",
    ),
    (("--mode=inspect", "--inspect="), "--inspect=: must be one of params, changed, "),
    (("--mode=inspect", "--inspect=diff:"), "--inspect=diff: needs an experiment: "),
    (
      ("--mode=inspect", "--inspect=diff:lm.shakespeare.Chr"),
      "there is no experiment 'lm.shakespeare.Chr'; nearest are: lm.shakespeare.Char",
    ),
  ],
)
def test_flags_that_contradict_each_other_or_name_nothing_are_refused(
  arguments, message
):
  found = command.refusal(f"--model={IMAGE}", *arguments)
  assert found.startswith(f"error: {message}")


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--num_tokens=0", r"--num_tokens=0: must be a whole number, at least 1$"),
    ("--num_tokens=x", r"--num_tokens=x: must be a whole number$"),
    ("--top_k=-1", r"--top_k=-1: must be a whole number, at least 0$"),
    ("--decode_seed=-1", r"--decode_seed=-1: must be a whole number, at least 0$"),
    ("--temperature=-1", r"--temperature=-1\.0: must be a finite number, at least 0"),
    ("--temperature=nan", r"--temperature=nan: must be a finite number, at least 0"),
    ("--temperature=inf", r"--temperature=inf: must be a finite number, at least 0"),
    ("--temperature=hot", r"--temperature=hot: must be a number$"),
    (
      "--prompt=naïve",
      r"--prompt: character 'ï' at 2 is not in the vocabulary, which is the newline",
    ),
  ],
)
def test_what_cannot_be_decoded_is_refused_by_flag_and_value(
  tmp_path, argument, message
):
  where = ("--model=lm.shakespeare.Char", f"--logdir={tmp_path}", "--mode=decode")
  found = command.refusal(*where, argument)
  assert re.search(message, found), found


@pytest.mark.parametrize("flag", ["top_k", "decode_seed"])
def test_what_is_drawn_by_nothing_has_no_options(tmp_path, flag):
  where = ("--model=lm.shakespeare.Char", f"--logdir={tmp_path}", "--mode=decode")
  found = command.refusal(*where, "--temperature=0", f"--{flag}=3")
  assert f"--{flag}=3 has no effect with --temperature=0" in found


@pytest.mark.parametrize(
  ("name", "source"),
  [
    (IMAGE, "SyntheticImageInput"),
    (TEXT, "SyntheticTextInput"),
    ("image.fashion_mnist.AmoebaNetTiny", "EmbeddedImageInput"),
  ],
)
def test_what_predicts_no_text_is_not_decoded(tmp_path, name, source):
  found = command.refusal(f"--model={name}", f"--logdir={tmp_path}", "--mode=decode")
  assert found.startswith(
    f"error: --mode=decode: experiment {name} predicts no text: its input, {source}, "
  )


def test_a_network_that_predicts_nothing_is_not_exported(tmp_path):
  found = command.refusal(
    f"--model={IMAGE}",
    f"--logdir={tmp_path}",
    "--mode=export",
    "--set=task.loss.cls=type/tests.program.test_modes/NoPrediction",
  )
  assert found.startswith(
    "error: the last layer, 'loss', says nothing of what it predicts: NoPrediction "
    "must define Predict(self, theta, *inputs), which gives a NestedMap of tensors [ba"
  )


class NoPrediction(ClassifierLoss):
  """A loss that is only trained."""

  Predict = Layer.Predict


EVALUATES = "tests.program.test_modes.Evaluates"


@registry.Register
class Evaluates(Image):
  """Asks for evaluations on the way."""

  def Model(self):
    return super().Model().Set(**{"train.eval_interval_steps": 3})


@pytest.mark.parametrize("name", [IMAGE, EVALUATES])
@pytest.mark.parametrize("dry", [(), ("--dry_run",)])
@pytest.mark.parametrize(
  "change", ["train.eval_interval_steps=3", " train.keep_best = loss"]
)
def test_evaluations_are_not_asked_for_where_none_are_made(tmp_path, name, dry, change):
  where = (f"--model={name}", f"--logdir={tmp_path}", "--mode=train", *dry)
  found = command.refusal(*where, f"--set={change}")
  field, value = (part.strip() for part in change.split("="))
  shown = value if value == "3" else repr(value)
  assert found == (
    f"error: {field}={shown} has no effect with --mode=train, which does not evaluate; "
    "it is for --mode=train_and_eval"
  )


def test_what_the_experiment_asks_for_itself_is_said_to_have_no_effect(
  tf, tmp_path, capsys
):
  where = (f"--model={EVALUATES}", f"--logdir={tmp_path}", "--max_steps=1")
  note = "no evaluation with --mode=train: without train.eval_interval_steps=3\n"
  command.run(*where, "--mode=train", "--dry_run")
  assert note in capsys.readouterr().out
  off = "--set=train.eval_interval_steps=0"
  command.run(*where, "--mode=train", "--dry_run", off)
  assert "no evaluation" not in capsys.readouterr().out
  command.run(*where, "--dry_run")
  assert "no evaluation" not in capsys.readouterr().out
