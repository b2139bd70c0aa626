"""Runs of the tiny experiments inside the test process."""

from __future__ import annotations

import json
import pathlib

from tfpipe import plan as plan_lib
from tfpipe import trainer
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import Checkpoint
from tfpipe.program.run import Run
from tfpipe.program.train import Trainer, restore_newest

IMAGE = "tests.program.tiny.Image"
TEXT = "tests.program.tiny.Text"
CHAR = "lm.shakespeare.Char"
# A network of a few weights and 8 characters; the shipped plays stay as they are.
TINY_CHAR = (
  "task.num_layers=1",
  "task.model_dim=8",
  "task.ff_dim=8",
  "task.num_heads=2",
  "task.sequence_length=8",
  "input.seq_len=8",
  "eval_input.seq_len=8",
  "input.batch_size=4",
  "eval_input.batch_size=4",
  "pipeline.num_micro_batches=2",
)
# What is logged and never twice the same.
TIMED = (
  *("examples/s", "tokens/s", "flops/s", "step_secs", "data_wait_secs"),
  "memory/host",
)


def make_run(name: str, *overrides: str) -> Run:
  params = trainer.model_params(name, overrides)
  return Run(params, plan_lib.make(params))


def train(
  folder: pathlib.Path, name: str, *overrides: str, evaluates: bool = False
) -> Run:
  """Trains to the last step as the program does, from the newest checkpoint if any."""
  folder.mkdir(exist_ok=True)
  run = make_run(name, *overrides)
  restore_newest(run, folder)
  Trainer(run, folder, evaluates=evaluates).train()
  return run


def newest(folder: pathlib.Path) -> Checkpoint:
  found, damaged = checkpoint_lib.newest(folder)
  assert found is not None
  assert not damaged
  return found


def differences(a: Checkpoint, b: Checkpoint) -> list[str]:
  """Names of the entries that are not equal bit for bit."""
  assert a.arrays.keys() == b.arrays.keys()
  assert a.step == b.step
  return [n for n in a.arrays if a.arrays[n].tobytes() != b.arrays[n].tobytes()]


def metrics(folder: pathlib.Path, kind: str) -> list[dict]:
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  records = [json.loads(line, parse_constant=_refuse) for line in lines]
  return [record for record in records if record["kind"] == kind]


def untimed(folder: pathlib.Path) -> list[dict]:
  """Gives all that the metrics file says of training, but for speed and memory."""
  records = metrics(folder, "train")
  return [{n: v for n, v in r.items() if n not in TIMED} for r in records]


def _refuse(constant: str) -> float:
  raise AssertionError(f"{constant} is not JSON")
