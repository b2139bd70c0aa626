"""What trains is chosen by a field, and what it cannot have is refused by name."""

from __future__ import annotations

import re

import pytest

from tests.program import command
from tests.program.training import IMAGE
from tfpipe import backend, plan, trainer
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.model import SCHEDULES
from tfpipe.schedule import gpipe
from tfpipe.spmd import strategies

BUCKETED = "lm.documents.Bucketed"
SPMD = "pipeline.backend=spmd"
CORES = ("pipeline.tpu=local", "pipeline.xla=True")
STEPS = "train.steps_per_call=2"


def make(name, *changes):
  return plan.make(trainer.model_params(name, changes))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      ("pipeline.backend=spdm",),
      r"pipeline.backend='spdm': must be one of devices, sp",
    ),
    (
      ("pipeline.tpu=local",),
      "pipeline.xla=False: must be True with pipeline.backend='devices' and pipeline",
    ),
    (
      (*CORES, "pipeline.devices=TPU:0,TPU:1"),
      "pipeline.devices='TPU:0,TPU:1': must be 'auto' with .* and pipeline.tpu='local'",
    ),
    (
      (*CORES, "pipeline.compute_dtype=float16"),
      "compute_dtype='float16': must be 'float32' or 'bfloat16' with",
    ),
    ((*CORES, "pipeline.intra_op_threads=1"), "intra_op_threads=1: must be 0 with"),
    (
      (*CORES, "pipeline.num_replicas=2"),
      "pipeline.num_replicas=2: must be 1 with pipeline.backend='devices'",
    ),
    (("train.steps_per_call=0",), "train.steps_per_call=0: must be a whole number"),
    ((STEPS,), "train.steps_per_call=2: must be 1 with pipeline.backend='devices'"),
    ((SPMD, "pipeline.num_replicas=0"), "num_replicas=0: must be a whole number, at"),
    (
      ("pipeline.num_replicas=2",),
      "pipeline.num_replicas=2: must be 1 with pipeline.backend='devices'",
    ),
    (
      (SPMD, "pipeline.num_replicas=3", "pipeline.num_micro_batches=4"),
      "num_replicas=3: must divide pipeline.num_micro_batches=4, which the pipelines s",
    ),
    ((SPMD, STEPS), "steps_per_call=2: must divide train.log_interval_steps=1"),
    (
      (SPMD, STEPS, "train.log_interval_steps=2", "train.max_steps=5"),
      "steps_per_call=2: must divide train.max_steps=5",
    ),
    (
      (SPMD, STEPS, "train.log_interval_steps=2", "train.save_interval_steps=3"),
      "steps_per_call=2: must divide train.save_interval_steps=3",
    ),
    (
      (SPMD, STEPS, "train.log_interval_steps=2", "train.eval_interval_steps=3"),
      "steps_per_call=2: must divide train.eval_interval_steps=3",
    ),
    (
      (SPMD, STEPS, "train.log_interval_steps=2", "input.repeat=false"),
      "steps_per_call=2: must divide the 3 mini-batches of the data, with input.repeat",
    ),
    (
      (SPMD, "pipeline.xla=true"),
      "pipeline.xla=True: must be False with pipeline.back",
    ),
    ((SPMD, "pipeline.devices=gpu"), "devices='gpu': must be 'auto' or 'cpu' with"),
    ((SPMD, "pipeline.intra_op_threads=1"), "intra_op_threads=1: must be 0 with"),
    (
      (SPMD, "pipeline.compute_dtype=float16"),
      "compute_dtype='float16': must be 'float32' or 'bfloat16' with",
    ),
    ((SPMD, "train.loss_spike=2"), "train.loss_spike=2.0: must be 0 with"),
    ((SPMD, "train.deterministic=true"), "deterministic=True: must be False with"),
    (
      (SPMD, "pipeline.tpu=local", "pipeline.devices=cpu"),
      "pipeline.devices='cpu': must be 'auto' with pipeline.tpu='local'",
    ),
    ((SPMD, "pipeline.schedule=zb_h1"), "schedule zb_h1.* does not line up in ticks"),
    (
      (SPMD, "pipeline.schedule=interleaved", "pipeline.num_micro_batches=4"),
      "schedule interleaved.* does not line up in ticks",
    ),
  ],
)
def test_what_the_back_end_cannot_have_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    make(IMAGE, *changes)


def test_batches_of_several_shapes_are_refused():
  with pytest.raises(
    ValueError, match=r"input gives batches of \d+ shapes: must be on"
  ):
    make(BUCKETED, SPMD)


def test_what_cannot_cross_a_border_is_refused_by_its_layer():
  params = trainer.model_params(IMAGE, [SPMD])
  costs = [
    LayerCost(name, 1, 1, 0, 0, 0, (ArraySpec((2,), dtype),))
    for name, dtype in (("first", "int8"), ("last", "float32"))
  ]
  made = gpipe.schedule(2, 2)
  with pytest.raises(ValueError, match="layer 'first' hands int8 from stage 0 to the"):
    backend.check_plan(params, made, [(0, 1), (1, 2)], costs)


def test_the_prediction_says_that_devices_meet():
  *_, note = make(IMAGE, SPMD).notes
  # Two stages, two micro-batches: 2 + 1 ticks of forwards, and as many of backwards, of
  # which the last stage begins in the tick of its last forward.
  assert "meet at the end of each of 5 ticks" in note


def test_pipelines_share_the_micro_batches():
  one, two = (
    make(IMAGE, SPMD, "pipeline.num_micro_batches=4", f"pipeline.num_replicas={number}")
    for number in (1, 2)
  )
  assert two.costs == one.costs
  assert two.schedule == make(IMAGE, "pipeline.num_micro_batches=2").schedule
  assert "2 pipelines of 2 cells x 2 micro-batches" in plan.summary(two)
  assert two.bubble > one.bubble
  batch = [sum(stage.batch for stage in made.stages) for made in (one, two)]
  assert batch[0] == 2 * batch[1]


def test_a_search_tries_what_the_back_end_can_run(capsys):
  arguments = (f"--model={IMAGE}", "--mode=plan", "--hardware=v100_16gb", "--search")
  command.run(*arguments, f"--set={SPMD}")
  shown = capsys.readouterr().out
  tried = {name for name in SCHEDULES if f"schedule={name} " in shown}
  assert tried
  # What is found for a run's own times may line up too.
  assert tried <= {"gpipe", "1f1b", "eager_1f1b", "zb_auto"}


def test_a_flag_sets_both_fields(tmp_path, capsys):
  command.run(f"--model={IMAGE}", "--mode=inspect", "--tpu=local")
  shown = capsys.readouterr().out
  assert "pipeline.backend : 'spmd'\n" in shown
  assert "pipeline.tpu : 'local'\n" in shown
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--tpu=grpc://127.0.0.1:1")
  found = command.refusal(*arguments, "--set=pipeline.backend=devices")
  assert found == "error: pipeline.backend is set twice: to devices and to spmd"


def test_single_actions_on_cores_are_compiled_and_labelled(capsys):
  arguments = (f"--model={IMAGE}", "--tpu=local", "--backend=devices")
  command.run(*arguments, "--mode=inspect")
  shown = capsys.readouterr().out
  assert "pipeline.backend : 'devices'\n" in shown
  assert "pipeline.tpu : 'local'\n" in shown
  assert "pipeline.xla : True\n" in shown
  command.run(*arguments, "--mode=plan")
  assert "on the cores of a TPU is unverified: it has not" in capsys.readouterr().out
  assert not any("unverified" in note for note in make(IMAGE).notes)


def test_single_actions_run_on_the_cores_that_a_tpu_has(
  tf, cpus, capsys, monkeypatch, tmp_path
):
  asked = []

  def cores(name, number):
    asked.append((name, number))
    return tuple(cpus[2 : 2 + number])

  monkeypatch.setattr(strategies, "cores", cores)
  arguments = (f"--model={IMAGE}", "--tpu=local", "--backend=devices")
  command.run(*arguments, f"--logdir={tmp_path}", "--max_steps=1", "--mode=train")
  assert asked == [("local", 2)]
  shown = capsys.readouterr().out
  assert f"devices {cpus[2]}, {cpus[3]}" in shown
  # What it has saved is evaluated where there is no TPU.
  command.run(*arguments, f"--logdir={tmp_path}", "--mode=eval")
  assert len(asked) == 1


def test_single_actions_are_not_measured(tmp_path):
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", "--profile=3:2")
  found = command.refusal(*arguments, f"--set={SPMD}")
  assert found.startswith("error: --profile: needs pipeline.backend='devices'; one pro")


@pytest.mark.parametrize("kind", backend.BACKENDS)
@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("local", r"pipeline\.tpu='local': this machine has no Cloud TPU that TensorFlow"),
    (
      "grpc://127.0.0.1:1",
      r"'grpc://127\.0\.0\.1:1': no Cloud TPU answers at this add",
    ),
  ],
)
def test_without_a_tpu_it_says_so(tf, tmp_path, name, message, kind):
  arguments = (f"--model={IMAGE}", f"--logdir={tmp_path}", f"--tpu={name}")
  arguments = (*arguments, f"--backend={kind}")
  assert re.search(message, command.refusal(*arguments))
  assert not list(tmp_path.iterdir())
