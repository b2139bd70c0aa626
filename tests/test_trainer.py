"""The trainer's flags and modes. What it refuses: tests/program/test_refusals.py."""

import fcntl
import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.program import command, training
from tests.program.training import IMAGE, TEXT
from tfpipe import layer_times, registry, schedule, trainer
from tfpipe import plan as plan_lib
from tfpipe.layer_times import LayerTime, LayerTimes
from tfpipe.params import Params
from tfpipe.program import checkpoint
from tfpipe.program.train import Trainer
from tfpipe.schedule import text
from tfpipe.units import format_bytes

ROOT = pathlib.Path(__file__).parents[1]
SHORT = [
  ("--num_partitions=3", "pipeline.num_partitions", 3),
  ("--num_micro_batches=4", "pipeline.num_micro_batches", 4),
  ("--schedule=1f1b", "pipeline.schedule", "1f1b"),
  ("--remat=layer", "pipeline.remat", "layer"),
  ("--devices=CPU:1,CPU:0", "pipeline.devices", "CPU:1,CPU:0"),
  ("--max_steps=17", "train.max_steps", 17),
  ("--deterministic", "train.deterministic", True),
]


def inspected(capsys, *arguments) -> Params:
  """Gives the effective Params as the program prints them."""
  capsys.readouterr()
  command.run(f"--model={IMAGE}", "--mode=inspect", *arguments)
  return registry.Get(IMAGE)().Model().FromText(capsys.readouterr().out)


@pytest.mark.parametrize(("flag", "path", "value"), SHORT)
def test_every_short_flag_sets_its_one_parameter(capsys, flag, path, value):
  before = inspected(capsys)
  assert before.Get(path) != value
  assert inspected(capsys, flag) == before.Set(**{path: value})


def test_there_is_no_short_flag_without_a_test():
  tested = {flag.partition("=")[0] for flag, _, _ in SHORT}
  tested |= {"--stages_per_device", "--layer_times", "--backend", "--tpu"}
  assert {f"--{flag}" for flag in trainer._SHORT} == tested


def test_stages_per_device_are_for_schedules_that_have_a_choice(capsys):
  others = ("--schedule=interleaved", "--num_micro_batches=2")
  before = inspected(capsys, *others)
  after = inspected(capsys, *others, "--stages_per_device=1")
  assert after == before.Set(**{"pipeline.stages_per_device": 1})
  found = command.refusal(f"--model={IMAGE}", "--mode=plan", "--stages_per_device=2")
  assert "error: pipeline.stages_per_device=2: must be 0 with schedule gpipe" in found
  found = command.refusal(f"--model={IMAGE}", "--mode=plan", "--stages_per_device=-1")
  assert "pipeline.stages_per_device=-1: must be a whole number, at least 0" in found


def test_layer_times_decide_on_the_cut_of_a_run(capsys, tmp_path):
  names = [cost.name for cost in plan_lib.make(trainer.model_params(IMAGE, [])).costs]
  path = tmp_path / "times.json"
  for slow, expected in ((0, "0     1 "), (len(names) - 1, f"0     {len(names) - 1} ")):
    times = [LayerTime(name, 0.1 + (i == slow), 0, 0) for i, name in enumerate(names)]
    layer_times.write(path, LayerTimes("a CPU", 4, tuple(times)))
    command.run(f"--model={IMAGE}", "--mode=plan", f"--layer_times={path}")
    shown = capsys.readouterr().out
    assert f"\n{expected}" in shown
    assert "note: times were measured on a CPU" in shown
  after = inspected(capsys, f"--layer_times={path}")
  assert after.pipeline.layer_times == str(path)
  path.write_text("{}")
  for name, said in (
    (path, f"{path}: the file: device, batch, layers, end missing"),
    ("no.json", "layer times 'no.json': there is no such file"),
  ):
    found = command.refusal(f"--model={IMAGE}", "--mode=plan", f"--layer_times={name}")
    assert found == f"error: pipeline.layer_times: {said}"


def test_a_schedule_that_cannot_be_trained_is_refused_before_tensorflow(tmp_path):
  def lists(device):
    make = functools.partial(schedule.Action, stage=device, pipe=0, size=1)
    for m in (0, 1):
      yield make("F", micro_batch=m, version=m)
      yield make("BW", micro_batch=m, version=m)
      yield make("U", micro_batch=m)

  actions = tuple(tuple(lists(device)) for device in (0, 1))
  two = schedule.Schedule("two", 2, 2, ((0, 1),), actions)
  path = tmp_path / "two.csv"
  path.write_text(text.to_csv(two))
  flags = (f"--model={IMAGE}", f"--schedule={path}", "--remat=none")
  for mode in (["--mode=plan"], ["--mode=train", f"--logdir={tmp_path / 'run'}"]):
    found = command.refusal(*flags, *mode)
    assert found.endswith("schedule two has 2 updates; one can be trained")


def test_a_schedule_comes_from_a_file(capsys, tmp_path):
  path = tmp_path / "mine.json"
  path.write_text(text.to_json(schedule.make("1f1b", 2, 2)))
  arguments = (f"--model={IMAGE}", "--mode=plan", f"--schedule={path}", "--remat=none")
  command.run(*arguments)
  assert capsys.readouterr().out.endswith("0: F0 F1 BW0 BW1 U0\n1: F0 BW0 F1 BW1 U0\n")
  found = command.refusal(*arguments, "--num_micro_batches=4")
  assert found == f"error: {path}: num_micro_batches is 4, but the file's is 2"
  path.write_text("{}")
  assert command.refusal(*arguments).startswith(f"error: {path}: name, num_stages, ")
  path.unlink()
  found = command.refusal(*arguments)
  assert found == f"error: pipeline.schedule='{path}': there is no such file"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--hardware=h100"], "--hardware has no effect with --mode=train_and_eval"),
    (
      ["--search"],
      "--search has no effect with --mode=train_and_eval; it is for --mode",
    ),
    (["--mode=inspect", "--search"], "--search has no effect with --mode=inspect"),
    (["--mode=plan", "--search"], "--search needs --hardware: its memory bounds the"),
    (["--mode=plan", "--hardware="], "hardware '' is not one of tpu_v2, "),
    (["--mode=plan", "--hardware=", "--search"], "hardware '' is not one of tpu_v2, "),
    (["--hardware="], "--hardware has no effect with --mode=train_and_eval"),
    (["--mode=plan", "--hardware=v100"], "hardware 'v100' is not .*'v100_16gb' or"),
    (["--mode=plan", "--hardware=h10"], "hardware 'h10' is not one of .*'h100'"),
    (
      ["--mode=plan", "--hardware=h10.json"],
      "hardware 'h10.json': there is no such fi",
    ),
    (
      ["--mode=plan", "--hardware=cpu", "--search", "--set=pipeline.lengths=(1,4)"],
      r"pipeline.lengths=\(1, 4\): must be empty in a search",
    ),
  ],
)
def test_what_is_for_plans_only_is_refused_elsewhere(tmp_path, arguments, message):
  logdir = [] if "--mode=" in arguments[0] else [f"--logdir={tmp_path}"]
  found = command.refusal(f"--model={IMAGE}", *arguments, *logdir)
  assert re.search(f"^error: {message}", found), found


def test_a_plan_for_hardware_says_what_does_not_fit_and_what_would(capsys, tmp_path):
  path = tmp_path / "tiny.json"
  fields = {
    "name": "tiny",
    "memory_bytes": 1,
    "flops_per_sec": 1e9,
    "number_format": "float32",
    "link_bytes_per_sec": 1e9,
  }
  arguments = (f"--model={IMAGE}", "--mode=plan", "--remat=none", f"--hardware={path}")
  path.write_text(json.dumps(fields))
  command.run(*arguments)
  shown = capsys.readouterr().out
  assert "predicted step " in shown
  assert "does not fit: 2 of 2 devices need more than the 1 B of tiny; " in shown
  assert "\nno setting makes it fit: layer " in shown
  plan = plan_lib.make(trainer.model_params(IMAGE, ["pipeline.remat=none"]))
  path.write_text(json.dumps({**fields, "memory_bytes": max(plan.device_bytes) - 1}))
  command.run(*arguments)
  three = plan_lib.make(
    trainer.model_params(IMAGE, ["pipeline.remat=none", "pipeline.num_partitions=3"])
  )
  need = format_bytes(max(three.device_bytes))
  assert f"\nit fits with --num_partitions=3 ({need})" in capsys.readouterr().out
  path.write_text(json.dumps({**fields, "memory_bytes": max(plan.device_bytes)}))
  command.run(*arguments)
  assert " fit" not in capsys.readouterr().out.replace("  fits\n", "")


def test_the_paper_s_largest_network_is_planned(capsys):
  command.run(
    "--mode=plan",
    "--model=lm.paper.Transformer1663",
    "--num_partitions=128",
    "--num_micro_batches=512",
  )
  shown = capsys.readouterr().out
  assert (
    "1665 layers, 83.9B weights; schedule gpipe+R, 128 cells x 512 micro-b" in shown
  )
  assert "schedule: up to 1537 actions a device; --mode=inspect --inspect=sch" in shown
  # 13 layers and 512 borders of 8 MiB: what the paper's formula says.
  assert " of activations on a device instead of 1.5 TiB" in shown


@pytest.mark.parametrize(
  ("override", "path", "value"),
  [
    ("train.seed=0x10", "train.seed", 16),
    (" input.shuffle = no ", "input.shuffle", False),
    ("task.learner.learning_rate=3", "task.learner.learning_rate", 3.0),
    ("pipeline.lengths=[1,4]", "pipeline.lengths", (1, 4)),
    ("task.name=a=b", "task.name", "a=b"),
    ("eval_input.last_batch='drop'", "eval_input.last_batch", "drop"),
  ],
)
def test_set_takes_a_value_of_the_type_of_the_parameter(capsys, override, path, value):
  before = inspected(capsys)
  after = inspected(capsys, f"--set={override}")
  assert after == before.Set(**{path: value})
  assert type(after.Get(path)) is type(value)


def test_the_same_value_may_be_given_twice(capsys):
  twice = inspected(capsys, "--max_steps=3", "--set=train.max_steps=3")
  assert twice.train.max_steps == 3


def test_each_call_begins_with_the_experiment_as_it_is():
  changed = trainer.model_params(IMAGE, ["train.max_steps=1", "task.dim=5"])
  again = trainer.model_params(IMAGE, [])
  assert (changed.train.max_steps, changed.task.dim) == (1, 5)
  assert again == registry.Get(IMAGE)().Model()


@pytest.mark.parametrize(
  ("name", "values"), [("remat", ("none", "cell")), ("mode", ("inspect", "plan"))]
)
def test_a_flag_given_twice_is_refused(name, values):
  mode = [] if name == "mode" else ["--mode=plan"]
  twice = [f"--{name}={value}" for value in values]
  text = command.refusal(f"--model={IMAGE}", *mode, *twice)
  assert text == f"error: --{name} is given 2 times"


def test_plan_prints_what_differs_the_cut_the_prediction_and_the_schedule(capsys):
  command.run(f"--model={IMAGE}", "--mode=plan", "--num_partitions=3", "--remat=none")
  shown = capsys.readouterr().out
  changes = "  - pipeline.num_partitions : 2\n  + pipeline.num_partitions : 3\n"
  assert f"changed from the experiment:\n{changes}" in shown
  assert "schedule gpipe, 3 cells x 2 micro-batches" in shown
  assert shown.splitlines()[-3:] == [
    "0: F0 F1 BW0 BW1 U0",
    "1: F0 F1 BW0 BW1 U0",
    "2: F0 F1 BW0 BW1 U0",
  ]


@pytest.mark.parametrize("mode", ["train_and_eval", "train"])
def test_a_run_trains_saves_its_params_and_evaluates_if_asked(
  tf, tmp_path, capsys, mode
):
  logdir = tmp_path / "new" / "folder"
  arguments = (f"--model={IMAGE}", f"--logdir={logdir}", f"--mode={mode}")
  command.run(*arguments, "--max_steps=1")
  shown = capsys.readouterr().out
  assert f"experiment {IMAGE}\n" in shown
  assert "devices /device:CPU:0, /device:CPU:1\n" in shown
  assert "\nstep=1/1 loss=" in shown
  assert f"\nsaved {logdir}/checkpoint-00000001.npz\n" in shown
  assert ("\neval step=1 loss=" in shown) == (mode == "train_and_eval")
  saved = registry.Get(IMAGE)().Model().FromText((logdir / "params.txt").read_text())
  assert saved == trainer.model_params(IMAGE, ["train.max_steps=1"])
  assert training.newest(logdir).params == saved.ToText()


def test_a_tilde_in_logdir_is_the_home_folder(tf, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  arguments = (f"--model={IMAGE}", "--logdir=~/run", "--mode=train")
  command.run(*arguments, "--max_steps=1")
  assert training.newest(tmp_path / "run").step == 1


def test_an_experiment_without_evaluation_input_says_so_and_trains(
  tf, tmp_path, capsys
):
  name = "tests.program.tiny.NoTest"
  command.run(f"--model={name}", f"--logdir={tmp_path}", "--max_steps=1")
  shown = capsys.readouterr().out
  assert "no evaluation: the experiment has no evaluation input (Test)\n" in shown
  assert training.newest(tmp_path).step == 1


@pytest.fixture
def no_steps(monkeypatch):
  def refuse(self):
    raise AssertionError("a step was run")

  monkeypatch.setattr(Trainer, "train", refuse)
  monkeypatch.setattr(Trainer, "evaluate", refuse)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--num_partitions=5"], "5 logical CPUs are needed, but TensorFlow has already"),
    (["--devices=CPU:0,TPU:0"], "'TPU:0' does not exist; this machine has "),
    (["--devices=CPU:0,GPU:99"], "'GPU:99' does not exist; this machine has "),
    (["--mode=eval"], "there is no checkpoint to evaluate"),
    (["--set=input.batch_size=30"], "batch_size = 30 is more than the 29 examples"),
    (["--set=eval_input.batch_size=14"], "batch_size = 14 is more than the 13 exam"),
  ],
)
def test_what_only_the_devices_or_the_data_can_tell_is_refused_before_the_first_step(
  tf, tmp_path, no_steps, arguments, message
):
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}", *arguments)
  assert found.startswith("error: ")
  assert message in found
  assert list(tmp_path.iterdir()) == []


def test_missing_gpus_are_never_replaced(tf, tmp_path, no_steps):
  number = len(tf.config.list_logical_devices("GPU"))
  stages = max(2, number + 1)
  if stages > 5:
    pytest.skip("more GPUs than layers")
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--devices=gpu")
  found = command.refusal(*arguments, f"--num_partitions={stages}")
  assert f"{stages} GPU devices are needed; this machine has {number}: " in found


def test_several_stages_share_a_device_if_asked_to(tf, tmp_path, capsys):
  arguments = (f"--model={TEXT}", f"--logdir={tmp_path}", "--max_steps=1")
  command.run(*arguments, "--devices=CPU:1,CPU:1", "--mode=train")
  assert "devices /device:CPU:1, /device:CPU:1\n" in capsys.readouterr().out
  assert training.newest(tmp_path).step == 1


def test_a_folder_of_damaged_or_foreign_checkpoints_is_refused(tf, tmp_path, no_steps):
  path = tmp_path / "checkpoint-00000001.npz"
  path.write_bytes(b"")
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}")
  assert "error: no complete checkpoint in " in command.refusal(*arguments)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]


def run(*arguments):
  """Runs the program as a user does."""
  return subprocess.run(
    [sys.executable, "-X", "importtime", "-m", "tfpipe.trainer", *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
    env={**os.environ, "COLUMNS": "88"},
  )


@pytest.mark.parametrize(
  ("arguments", "code", "out"),
  [
    (["--help"], 1, "--num_partitions: K: number of partitions, one a device."),
    ([f"--model={TEXT}", "--mode=plan"], 0, "predicted bubble"),
    ([f"--model={TEXT}", "--mode=inspect"], 0, "train.max_steps : 4\n"),
    (
      [f"--model={TEXT}", "--mode=inspect", "--inspect=variables"],
      0,
      "is embedding/w\n",
    ),
    ([f"--model={TEXT}", "--mode=decode", "--logdir=no/such"], 1, ""),
    ([f"--model={TEXT}", "--mode=plan", "--hardware=h200", "--search"], 0, "--remat="),
    (["--model=lm.shakespeare.Chr", "--mode=plan"], 1, ""),
    (["--num_partition=2"], 1, ""),
  ],
)
def test_what_needs_no_tensorflow_does_not_import_it(arguments, code, out):
  ended = run(*arguments)
  assert ended.returncode == code
  assert out in ended.stdout
  imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
  assert "tfpipe.plan" in imported
  assert not {name for name in imported if name.split(".")[0] == "tensorflow"}
  assert "Traceback" not in ended.stderr


def test_a_folder_in_which_another_process_trains_is_refused(tf, tmp_path, no_steps):
  descriptor = os.open(tmp_path, os.O_RDONLY)
  fcntl.flock(descriptor, fcntl.LOCK_EX)
  try:
    found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}")
  finally:
    os.close(descriptor)
  assert f"--logdir={tmp_path}: another process is training there" in found
  assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_experiment_is_refused_and_left_alone(
  tf, tmp_path, no_steps
):
  foreign = checkpoint.Checkpoint(1, {"weights/w": np.ones(3)}, TEXT, "")
  saved = checkpoint.save(tmp_path, foreign, keep=1)
  before = saved.read_bytes()
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}")
  assert f"error: the checkpoint is of experiment {TEXT}, this run is of" in found
  assert list(tmp_path.iterdir()) == [saved]
  assert saved.read_bytes() == before
