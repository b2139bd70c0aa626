"""Packed and bucketed texts through the trainer: right, resumed, or refused."""

import re

import numpy as np
import pytest

from tests.program import command, training
from tfpipe import trainer

PACKED = "lm.documents.Packed"
BUCKETED = "lm.documents.Bucketed"
SMALL = (
  "task.num_layers=1",
  "task.model_dim=8",
  "task.ff_dim=16",
  "task.num_heads=2",
  "task.learner.lr_schedule.warmup_steps=2",
  "train.log_interval_steps=1",
)
ONE = ("pipeline.num_partitions=1", "pipeline.num_micro_batches=1")
THREE = (
  "pipeline.num_partitions=3",
  "pipeline.num_micro_batches=2",
  "pipeline.schedule=zb_h1",
)
STEPS = 4


def losses(folder):
  return [record["loss"] for record in training.metrics(folder, "train")]


@pytest.mark.parametrize(
  ("name", "more", "num_shapes"),
  [
    (PACKED, ("task.positions=learned",), 1),
    (BUCKETED, ("input.bucket_lengths=(64,)", "input.seed=5"), 2),
  ],
)
def test_all_stages_get_the_fields_and_resume_exactly(
  tf, tmp_path, name, more, num_shapes
):
  changes = (*SMALL, *more, "task.dropout_keep_prob=1.0")
  end = f"train.max_steps={STEPS}"
  runs = {
    folder: training.train(tmp_path / folder, name, *changes, *layout, end)
    for folder, layout in (("one", ONE), ("three", THREE))
  }
  batches = runs["one"].input.dataset().take(STEPS)
  assert len({tuple(batch["ids"].shape) for batch in batches}) == num_shapes
  np.testing.assert_allclose(
    losses(tmp_path / "three"), losses(tmp_path / "one"), rtol=1e-5
  )
  training.train(tmp_path / "parts", name, *changes, *THREE, "train.max_steps=2")
  training.train(tmp_path / "parts", name, *changes, *THREE, end)
  parts, whole = (training.newest(tmp_path / n) for n in ("parts", "three"))
  assert not training.differences(parts, whole)


def test_a_bucketed_evaluation_weighs_every_character_once(tf):
  run = training.make_run(BUCKETED, *SMALL, *ONE)
  function = run.eval_function()
  total = sum(float(function(batch)["loss"][1]) for batch in run.eval_input.dataset())
  assert total == 103_427  # the characters of Macbeth


@pytest.mark.parametrize(
  ("name", "argument", "message"),
  [
    (
      PACKED,
      "--set=task.packed=False",
      r"input gives segment_ids, .* attention would mix the texts; set task\.packed=",
    ),
    (
      "lm.shakespeare.Char",
      "--set=task.packed=True",
      r"layer 'embedding' reads 'positions'; the input gives ids, labels, weights",
    ),
    (
      BUCKETED,
      "--set=input.bucket_lengths=(64, 32)",
      r"bucket_lengths = \(64, 32\): must be integers of at least 1, ascending, all b",
    ),
    (
      BUCKETED,
      "--set=input.batch_size=1000",
      r"the 780 texts of bucket 32 fill no batch, and last_batch = 'drop'",
    ),
    (
      BUCKETED,
      "--profile=2:1",
      r"--profile: batches have 3 shapes, .* set input\.bucket_lengths=\(\)$",
    ),
    ("lm.shakespeare.Char", "--set=input.shard_index=1", r"shard_index = 1: it must "),
    (
      "lm.shakespeare.Char",
      "--set=input.num_shards=99",
      r"batch_size = 32 by num_shards = 99 is more than the 2184 .* to 22 or less",
    ),
  ],
)
def test_what_does_not_fit_is_refused(tf, tmp_path, name, argument, message):
  arguments = (f"--model={name}", f"--logdir={tmp_path}", argument)
  found = command.refusal(*arguments, *(f"--set={change}" for change in (*SMALL, *ONE)))
  assert re.search(message, found), found
  assert list(tmp_path.iterdir()) == []


def test_plans_are_for_the_longest_rows():
  changes = [*SMALL, "input.bucket_lengths=()"]
  bucketed, plain = (
    trainer.plan_lib.make(trainer.model_params(BUCKETED, own))
    for own in (SMALL, changes)
  )
  assert bucketed.costs == plain.costs
