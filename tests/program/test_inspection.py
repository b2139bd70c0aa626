"""What `--mode=inspect` prints."""

import re

import pytest

from tests.program import command
from tests.program.training import IMAGE, TEXT
from tfpipe import plan as plan_lib
from tfpipe import registry, schedule, trainer
from tfpipe.schedule import text


def shown(capsys, *arguments):
  capsys.readouterr()
  command.run("--mode=inspect", *arguments)
  return capsys.readouterr().out


def test_params_are_all_of_them(capsys):
  found = shown(capsys, f"--model={IMAGE}", "--inspect=params")
  assert found == shown(capsys, f"--model={IMAGE}")
  assert registry.Get(IMAGE)().Model().FromText(found) == trainer.model_params(
    IMAGE, []
  )


def test_changed_are_those_that_are_not_as_their_class_defines_them(capsys):
  found = shown(capsys, f"--model={IMAGE}", "--inspect=changed", "--set=train.seed=7")
  lines = found.splitlines()
  assert "train.seed : 7" in lines
  assert "train.max_steps : 6" in lines
  assert "pipeline.num_partitions : 2" in lines
  assert not [line for line in lines if line.startswith("train.keep_checkpoints")]
  everything = shown(capsys, f"--model={IMAGE}", "--set=train.seed=7").splitlines()
  assert set(lines) - {""} < set(everything)


def test_a_difference_has_a_line_for_each_side(capsys):
  other = "--inspect=diff:tests.program.tiny.NoTest"
  found = shown(capsys, f"--model={IMAGE}", other, "--max_steps=9").splitlines()
  assert "- name : 'tests.program.tiny.NoTest'" in found
  assert f"+ name : '{IMAGE}'" in found
  assert "- train.max_steps : 6" in found
  assert "+ train.max_steps : 9" in found
  assert "- eval_input : None" in found
  assert "+ eval_input.batch_size : 8" in found
  assert not [line for line in found if "pipeline" in line]


def test_an_experiment_does_not_differ_from_itself(capsys):
  found = shown(capsys, f"--model={IMAGE}", f"--inspect=diff:{IMAGE}")
  assert found == f"nothing differs from {IMAGE}\n"


def rows(found):
  return [re.split(r"  +", line.strip()) for line in found.splitlines()]


def test_variables_are_listed_by_stage_and_layer_with_their_sizes(capsys):
  cut = "--set=pipeline.lengths=(1,4)"
  head, *lines, summary = rows(
    shown(capsys, f"--model={IMAGE}", "--inspect=variables", cut)
  )
  assert head == ["stage", "layer", "variable", "shape", "numbers", "bytes"]
  # Blocks 9 -> 6 -> 6 -> 6 -> 7, each with w, b and two moving statistics.
  assert len(lines) == 16
  assert lines[0] == ["0", "block_0", "w", "9x6", "54", "216 B"]
  assert lines[2] == ["0", "block_0", "moving_mean", "6", "6", "24 B", "not trained"]
  assert lines[12] == ["1", "block_3", "w", "6x7", "42", "168 B"]
  assert [line[0] for line in lines] == ["0"] * 4 + ["1"] * 12
  numbers = 9 * 6 + 2 * 6 * 6 + 6 * 7 + 3 * (3 * 6 + 7)
  assert summary == [f"{numbers} numbers, {4 * numbers} B"]


def test_a_tied_variable_is_listed_where_it_is_used_and_counted_once(capsys):
  found = rows(shown(capsys, f"--model={TEXT}", "--inspect=variables"))
  assert found[1] == ["0", "embedding", "w", "11x8", "88", "352 B"]
  assert ["1", "softmax", "w", "11x8", "is embedding/w"] in found
  counted = [int(row[4]) for row in found[1:-1] if row[4].isdigit()]
  assert sum(counted) == trainable(TEXT)
  assert found[-1][0].startswith(f"{sum(counted)} numbers, ")


def trainable(name):
  costs = plan_lib.make(trainer.model_params(name, [])).costs
  return sum(cost.param_count for cost in costs)


def test_the_schedule_is_a_file_to_start_from(capsys, tmp_path):
  arguments = (f"--model={IMAGE}", "--schedule=1f1b", "--remat=none")
  found = shown(capsys, *arguments, "--inspect=schedule")
  assert text.from_csv(found) == schedule.make("1f1b", 2, 2)
  path = tmp_path / "mine.csv"
  path.write_text(found)
  again = shown(
    capsys,
    f"--model={IMAGE}",
    f"--schedule={path}",
    "--remat=none",
    "--inspect=schedule",
  )
  assert again == found


@pytest.mark.parametrize("what", ["variables", "schedule", "changed"])
def test_bad_params_are_refused_whatever_is_inspected(what):
  arguments = (f"--model={IMAGE}", "--mode=inspect", f"--inspect={what}")
  found = command.refusal(*arguments, "--num_partitions=6")
  assert "pipeline.num_partitions=6: must be at most" in found
