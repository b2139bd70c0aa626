"""The files by which the folder of a run explains itself."""

import os

import pytest

from tests.program import command, training
from tests.program.training import IMAGE
from tfpipe import plan as plan_lib
from tfpipe import registry, trainer
from tfpipe.program import run_folder
from tfpipe.program.versions import versions
from tfpipe.schedule import text


@pytest.fixture
def params():
  return trainer.model_params(
    IMAGE, ["pipeline.schedule=1f1b", "task.learner.learning_rate=0.3"]
  )


def test_the_folder_holds_params_changes_plan_schedule_and_versions(tmp_path, params):
  plan = plan_lib.make(params)
  run_folder.write(tmp_path, params, plan)
  found = {path.name: path.read_text() for path in tmp_path.iterdir()}
  assert registry.Get(IMAGE)().Model().FromText(found["params.txt"]) == params
  assert found["changes.txt"] == (
    "- pipeline.schedule : 'gpipe'\n+ pipeline.schedule : '1f1b'\n"
    "- task.learner.learning_rate : 0.1\n+ task.learner.learning_rate : 0.3\n"
  )
  assert text.from_csv(found["schedule.csv"]) == plan.schedule
  lines = [f"{name} : {version}" for name, version in versions().items()]
  assert found["versions.txt"].splitlines() == lines
  assert len(found) == 5


def test_the_plan_has_the_cut_the_layers_and_the_prediction(tmp_path, params):
  plan = plan_lib.make(params)
  run_folder.write(tmp_path, params, plan)
  found = (tmp_path / "plan.txt").read_text()
  assert plan_lib.table(plan) in found
  assert plan_lib.summary(plan) in found
  # Kernels and biases; moving statistics are not learned.
  layers = [line.split() for line in found.splitlines() if " block_" in line]
  by_name = {row[1]: row for row in layers if len(row) > 8 and row[0] in "01"}
  assert by_name["block_0"][2] == str(9 * 6 + 6)
  assert by_name["block_1"][2] == str(6 * 6 + 6)


def test_a_run_as_the_experiment_says_has_no_changes(tmp_path):
  params = trainer.model_params(IMAGE, [])
  run_folder.write(tmp_path, params, plan_lib.make(params))
  assert (tmp_path / "changes.txt").read_text() == ""


def test_a_later_start_replaces_what_an_earlier_one_said(tf, tmp_path, capsys):
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--devices=cpu")
  command.run(*arguments, "--mode=train", "--max_steps=1")
  command.run(*arguments, "--mode=train", "--max_steps=2", "--num_partitions=3")
  capsys.readouterr()
  changes = (tmp_path / "changes.txt").read_text()
  assert "+ train.max_steps : 2\n" in changes
  assert "max_steps : 1\n" not in changes
  made = text.from_csv((tmp_path / "schedule.csv").read_text())
  assert made.num_devices == 3
  assert training.newest(tmp_path).step == 2


def test_evaluation_leaves_these_files_alone(tf, tmp_path, capsys):
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--devices=cpu")
  command.run(*arguments, "--mode=train", "--max_steps=1")
  names = ("params.txt", "changes.txt", "plan.txt", "schedule.csv", "versions.txt")
  before = [(tmp_path / name).read_text() for name in names]
  command.run(*arguments, "--mode=eval", "--max_steps=1", "--num_partitions=1")
  capsys.readouterr()
  assert [(tmp_path / name).read_text() for name in names] == before


@pytest.mark.parametrize(
  "name",
  [
    *("params.txt", "metrics.jsonl", "report.html", "best.npz", "checkpoint.partial"),
    *("checkpoint-00000003.npz", "ended.txt", "trace.json"),
  ],
)
def test_a_folder_in_the_place_of_a_file_is_refused_at_the_start(tmp_path, name):
  (tmp_path / name).mkdir()
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}")
  assert found == (
    f"error: {tmp_path}/{name}: this is a folder where a file must be; move it away"
  )


@pytest.mark.parametrize("name", ["train", "eval", "export"])
def test_a_file_in_the_place_of_a_folder_is_refused_at_the_start(tmp_path, name):
  (tmp_path / name).write_text("")
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}")
  assert found == (
    f"error: {tmp_path}/{name}: this is a file where a folder must be; move it away"
  )


def test_a_damaged_record_of_an_end_is_still_one(tmp_path):
  (tmp_path / "ended.txt").write_bytes(b"the \x99data")
  assert run_folder.ended(tmp_path).why == "the \ufffddata"


def test_that_a_training_has_ended_is_recorded_and_taken_back(tmp_path):
  assert run_folder.ended(tmp_path).why == ""
  run_folder.begin(tmp_path)
  run_folder.end(tmp_path, "the data has ended")
  assert run_folder.ended(tmp_path).why == "the data has ended"
  run_folder.begin(tmp_path)
  assert run_folder.ended(tmp_path).why == ""


@pytest.mark.parametrize("name", ["checkpoint.partial", "metrics.jsonl", "best.npz"])
def test_a_pipe_in_the_place_of_a_file_is_refused_before_anyone_waits_for_it(
  tmp_path, name
):
  os.mkfifo(tmp_path / name)
  message = f"{name}: this is a pipe or a device where a file must be; move it away$"
  with pytest.raises(ValueError, match=message):
    run_folder.check(tmp_path)
