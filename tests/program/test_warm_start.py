"""Starting from the weights of another run."""

import dataclasses
import re

import numpy as np
import pytest

from tests.program import command, training
from tests.program.training import IMAGE
from tfpipe import saving
from tfpipe.cost import ArraySpec
from tfpipe.model import TrainParams
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program import warm_start
from tfpipe.program.checkpoint import Checkpoint

# The classifier gets more classes; what is before it is taken over.
FINE = ("task.num_classes=9", "eval_input.num_classes=9", "input.num_classes=9")
ALL_BUT_LAST = "train.warm_start_rules=(('(?!block_3/).*',''),)"


def source(**shapes):
  arrays = {f"weights/{name}": np.zeros(shape) for name, shape in shapes.items()}
  arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
  arrays["slots/a/momentum"] = np.zeros(3)
  return Checkpoint(5, arrays, "some.Experiment", "")


def choose(weights, there, *rules):
  params = TrainParams().Set(warm_start="x", warm_start_rules=rules)
  specs = {name: ArraySpec(shape) for name, shape in weights.items()}
  return warm_start.choose(saving.rules(params), specs, there)


def test_weights_are_chosen_by_all_of_their_name_and_the_first_rule_counts():
  weights = {"a/w": (2,), "b/w": (3,), "ab/w": (2,)}
  there = source(**{"a/w": (2,), "b/w": (3,), "ab/w": (2,), "z/w": (3,)})
  assert choose(weights, there, (".*", "")) == {n: n for n in weights}
  assert choose(weights, there, ("a/.*", "")) == {"a/w": "a/w"}
  assert choose(weights, there, ("b/w", "z/w"), (".*/w", "")) == {
    "a/w": "a/w",
    "b/w": "z/w",
    "ab/w": "ab/w",
  }


def test_groups_of_the_pattern_make_the_name_in_the_other_run():
  weights = {f"block_{i}/w": (2,) for i in (0, 1, 2)}
  there = source(**{f"layer_{i}/w": (2,) for i in (0, 1, 2)})
  assert choose(
    weights, there, (r"block_([01])/(?P<kind>.*)", r"layer_\1/\g<kind>")
  ) == {
    "block_0/w": "layer_0/w",
    "block_1/w": "layer_1/w",
  }


def test_all_that_does_not_fit_is_named_at_once():
  weights = {"a/w": (2,), "b/w": (3,), "c/w": (4,)}
  there = source(**{"a/w": (2, 1), "bb/w": (3,), "d/w": (5,)})
  with pytest.raises(ValueError, match="nothing was taken") as error:
    choose(weights, there, ("c/w", "d/w"), ("[ab]/w", ""), ("a/.*", ""), ("x", ""))
  assert str(error.value).splitlines() == [
    "train.warm_start_rules do not fit the checkpoint of step 5 of some.Experiment; "
    "nothing was taken:",
    "  ('a/.*', '') matches only weights that rules before it do",
    "  ('x', '') matches none of this run's weights: a/w, b/w, c/w",
    "  a/w: (2, 1) in the checkpoint, (2,) in this model",
    "  missing: b/w; did you mean 'bb/w'?",
    "  d/w for c/w: (5,) in the checkpoint, (4,) in this model",
  ]


def test_what_was_taken_and_what_was_not_is_said():
  weights = {f"w{i}": ArraySpec((2,)) for i in range(9)}
  there = source(w0=(2,), old=(2,), w2=(2,))
  assert warm_start.summary({"w0": "w0", "w1": "old"}, weights, there) == (
    "warm start from step 5 of some.Experiment:\n"
    "  taken: w0, w1 from old\n"
    "  with start values of their own: w2, w3, w4, w5, w6, w7, w8\n"
    "  not used: w2"
  )
  assert "\n  not used: none" in warm_start.summary(
    {n: n for n in weights}, weights, source()
  )
  many = warm_start.summary({n: n for n in weights}, weights, there)
  assert "\n  taken: w0, w1, w2, w3, w4, w5, w6, w7, ... (9)\n" in many


@pytest.fixture(scope="module")
def trained(tf, tmp_path_factory):
  folder = tmp_path_factory.mktemp("trained")
  training.train(folder, IMAGE, "train.max_steps=2")
  return folder


def test_chosen_layers_and_their_averages_start_from_the_other_run(trained):
  run = training.make_run(IMAGE, *FINE, f"train.warm_start={trained}", ALL_BUT_LAST)
  fresh = run.checkpoint().arrays
  found = training.newest(trained)
  there = {name: array + 1 for name, array in found.arrays.items()}
  warm_start.take(run, dataclasses.replace(found, arrays=there))
  arrays = run.checkpoint().arrays
  assert {
    name for name in arrays if arrays[name].tobytes() != fresh[name].tobytes()
  } == {
    name
    for name in arrays
    if name.startswith(("weights/block_", "ema/block_")) and "block_3" not in name
  }
  for name, array in arrays.items():
    kind, _, weight = name.partition("/")
    if kind in ("weights", "ema") and not weight.startswith("block_3/"):
      np.testing.assert_array_equal(array, there[f"weights/{weight}"])
  assert run.step == 0


def test_one_weight_that_does_not_fit_leaves_all_as_they_were(trained):
  run = training.make_run(IMAGE, *FINE, f"train.warm_start={trained}")
  before = run.checkpoint()
  message = r"  block_3/w: \(6, 7\) in the checkpoint, \(6, 9\) in this model"
  with pytest.raises(ValueError, match=message):
    warm_start.take(run, training.newest(trained))
  assert training.differences(run.checkpoint(), before) == []


def test_the_trainer_starts_warm_once_and_then_continues_its_own(
  trained, tmp_path, capsys
):
  sets = (*FINE, ALL_BUT_LAST, f"train.warm_start={trained}")
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--mode=train")
  arguments += tuple(f"--set={override}" for override in sets)
  command.run(*arguments, "--max_steps=1")
  assert f"warm start from step 2 of {IMAGE}:\n  taken: bl" in capsys.readouterr().out
  assert training.newest(tmp_path).step == 1
  command.run(*arguments, "--max_steps=2")
  shown = capsys.readouterr().out
  assert f"train.warm_start='{trained}' is not used: the run continues from a" in shown
  assert "warm start from" not in shown
  assert f"restored step 1 from {tmp_path}\n" in shown


def refusal(tmp_path, *sets):
  arguments = (f"--set={override}" for override in sets)
  found = command.refusal(
    f"--model={IMAGE}", f"--logdir={tmp_path / 'run'}", *arguments
  )
  assert not (tmp_path / "run").exists()
  return found


def test_what_is_no_checkpoint_is_refused_before_any_weight_is_made(
  tmp_path, monkeypatch
):
  def refuse(*arguments):
    raise AssertionError("the run was made")

  monkeypatch.setattr("tfpipe.program.startup.Run", refuse)
  there = tmp_path / "there"
  owner = f"error: train.warm_start='{there}': "
  arguments = (tmp_path, f"train.warm_start={there}")
  assert refusal(*arguments) == f"{owner}there is no such file or folder"
  there.mkdir()
  assert refusal(*arguments) == f"{owner}there is no checkpoint-*.npz in this folder"
  (there / "checkpoint-00000001.npz").write_bytes(b"PK")
  assert refusal(*arguments).startswith(f"{owner}no complete checkpoint in {there}:\n")
  found = refusal(tmp_path, f"train.warm_start={there}/checkpoint-00000001.npz")
  assert re.search(r"00001\.npz': .*00001\.npz is not a complete checkpoint", found)


def test_rules_that_do_not_fit_are_refused_before_the_first_step(trained, tmp_path):
  sets = (f"train.warm_start={trained}", "train.warm_start_rules=(('block_9/.*',''),)")
  found = refusal(tmp_path, *sets)
  assert "('block_9/.*', '') matches none of this run's weights: block_0/w, " in found


def test_the_best_checkpoint_of_a_run_can_be_started_from(trained, tmp_path):
  best = checkpoint_lib.save_best(tmp_path, training.newest(trained))
  found = warm_start.find(TrainParams().Set(warm_start=str(best)), tmp_path / "run")
  assert found is not None
  assert found.step == 2


def test_no_warm_start_unless_asked(tmp_path):
  assert warm_start.find(TrainParams(), tmp_path) is None
