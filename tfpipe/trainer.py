"""Trains an experiment: `python -m tfpipe.trainer --model=NAME --logdir=FOLDER`."""

from __future__ import annotations

from tfpipe.program import stop, streams

if __name__ == "__main__":
  streams.outlive_readers()
  stop.listen()  # from before the imports that take time

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from absl import app, flags

from tfpipe import backend, error_text, registry
from tfpipe import hardware as hardware_lib
from tfpipe import plan as plan_lib
from tfpipe.model import REMAT, SCHEDULES
from tfpipe.params import Params
from tfpipe.program import modes, refusal, restarts
from tfpipe.program.changes import model_params
from tfpipe.program.failure import StepError, failed
from tfpipe.program.inspection import inspect
from tfpipe.program.planning import show_plan, show_search
from tfpipe.program.report import differences, first_screen, show
from tfpipe.spelling import nearest

if TYPE_CHECKING:
  from tfpipe.program.train import Trainer

# TensorFlow's start-up notes would drown the first screen; errors still show.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Name of the experiment, e.g. lm.shakespeare.Char.")
flags.DEFINE_string("logdir", None, "Folder of the run: checkpoints, params, metrics.")
flags.DEFINE_string(
  "mode",
  "train_and_eval",
  "; ".join(f"{mode} {what}" for mode, what in modes.MODES.items()) + ".",
)
flags.DEFINE_bool(
  "dry_run", False, "Tries the first step of a training in memory; writes nothing."
)
flags.DEFINE_bool(
  "watch",
  False,
  "With --mode=eval: evaluates each newest checkpoint of a training, until its last "
  "step, or until it has ended before; one that was killed is waited for.",
)
flags.DEFINE_string(
  "inspect",
  "params",
  "With --mode=inspect: params, changed (those that are not as their class defines "
  "them), diff:EXPERIMENT, variables (by layer and stage), or schedule (as CSV).",
)
flags.DEFINE_string("prompt", "", "With --mode=decode: the text to be continued.")
flags.DEFINE_integer("num_tokens", 200, "With --mode=decode: tokens to add.")
flags.DEFINE_float(
  "temperature",
  1.0,
  "With --mode=decode: logits are divided by it; 0 takes the most probable token.",
)
flags.DEFINE_integer(
  "top_k", 0, "With --mode=decode: most probable tokens to choose from; 0: all."
)
flags.DEFINE_integer("decode_seed", 0, "With --mode=decode: seed of what is drawn.")
flags.DEFINE_integer("num_partitions", None, "K: number of partitions, one a device.")
flags.DEFINE_integer("num_micro_batches", None, "M: number of micro-batches.")
flags.DEFINE_string(
  "schedule", None, f"Schedule: {', '.join(SCHEDULES)}, or a file .csv or .json."
)
flags.DEFINE_integer(
  "stages_per_device", None, "V: cells on a device, for schedules that have a choice."
)
flags.DEFINE_string("remat", None, f"Re-materialization: {', '.join(REMAT)}.")
flags.DEFINE_string(
  "layer_times", None, "File of measured times of the layers; else FLOPs are taken."
)
flags.DEFINE_string(
  "hardware",
  None,
  "With --mode=plan: devices and links to plan for, of the table "
  f"({', '.join(hardware_lib.names())}) or a file .json.",
)
flags.DEFINE_bool(
  "search",
  False,
  "With --mode=plan: searches all of --num_partitions, --num_micro_batches, "
  "--schedule, --stages_per_device and --remat that are not given.",
)
flags.DEFINE_string(
  "profile",
  None,
  "start:count: measures these steps and compares them with the prediction; writes "
  "timeline.json, and trace.json for Perfetto.",
)
flags.DEFINE_string("devices", None, "auto, cpu, gpu, or device names with commas.")
flags.DEFINE_string("tpu", None, "Cloud TPU whose cores train: local, or its name.")
flags.DEFINE_string("backend", None, backend.HELP)
flags.DEFINE_integer("max_steps", None, "Mini-batches to train on.")
flags.DEFINE_integer(
  "max_restarts",
  0,
  "Times that training is started again, from the newest checkpoint, after a crash.",
)
flags.DEFINE_bool(
  "deterministic",
  None,
  "Only operations that give the same bits each time (train.deterministic).",
)
flags.DEFINE_multi_string(
  "set", [], "Sets any of the Params, e.g. --set task.learner.learning_rate=0.01."
)

# What a flag's value must be, by absl's name of its type.
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}

# Flags that are short for one of the Params.
_SHORT = {
  "num_partitions": "pipeline.num_partitions",
  "num_micro_batches": "pipeline.num_micro_batches",
  "schedule": "pipeline.schedule",
  "stages_per_device": "pipeline.stages_per_device",
  "remat": "pipeline.remat",
  "layer_times": "pipeline.layer_times",
  "devices": "pipeline.devices",
  "backend": "pipeline.backend",
  "tpu": "pipeline.tpu",
  "max_steps": "train.max_steps",
  "deterministic": "train.deterministic",
}


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the flags and returns what is none, the program's name first.

  Raises:
    SystemExit: with a message of one line; a flag is unknown or has a wrong value.
  """
  try:
    return FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    _refuse(f"there is no flag --{name}{nearest(name, FLAGS)}")
  except flags.IllegalFlagValueError as error:
    # What the parser of the value says is for programmers.
    given = str(error).removeprefix("flag ").removesuffix(f": {error.__context__}")
    name = given.removeprefix("--").partition("=")[0]
    kind = FLAGS[name].flag_type() if name in FLAGS else ""
    allowed = f": must be {_KINDS[kind]}" if kind in _KINDS else ""
    _refuse(f"{given}{allowed}")
  except flags.CantOpenFlagFileError as error:
    _refuse(f"--flagfile={error_text.of(error.__context__ or error)}")
  except (flags.Error, ValueError) as error:
    _refuse(" ".join(str(error).split()))


def _refuse(why: str) -> NoReturn:
  sys.exit(f"error: {error_text.printable(why)}")


def overrides() -> list[str]:
  """Gives what the flags set, as `key.path=value`.

  Raises:
    ValueError: a flag is given twice, of which absl would take the last.
  """
  for name in FLAGS:
    if FLAGS[name].present > 1 and name not in ("set", "flagfile"):
      raise ValueError(f"--{name} is given {FLAGS[name].present} times")
  short = [
    f"{path}={FLAGS[flag].value}"
    for flag, path in _SHORT.items()
    if FLAGS[flag].value is not None
  ]
  return [*FLAGS.set, *short, *backend.implied(FLAGS.tpu, FLAGS.backend)]


def _prepare() -> tuple[Params, str]:
  """Reads and checks flags and Params; touches no device.

  Returns:
    the Params, and how they differ from the experiment's.
  """
  if not FLAGS.model:
    raise ValueError("--model is missing; it names an experiment")
  modes.check(FLAGS.mode, modes.given(FLAGS))
  modes.check_inspect(FLAGS.inspect)
  restarts.check(FLAGS.max_restarts)
  registry.Get(FLAGS.model)  # that it is missing is said first of all
  if not FLAGS.dry_run or FLAGS.logdir is not None:
    modes.check_logdir(FLAGS.mode, FLAGS.logdir)
  params = model_params(FLAGS.model, overrides())
  whole = registry.Get(FLAGS.model)().Model()
  changes = differences(whole.ToText(), params.ToText())
  modes.without_effect(FLAGS.mode, params, FLAGS.set)  # refuses what a flag sets
  if FLAGS.mode == "eval" and params.eval_input is None:
    raise ValueError(f"experiment {FLAGS.model} has no evaluation input (Test)")
  return params, changes


def main(argv: Sequence[str]) -> None:
  """Runs the mode that the flags name."""
  try:
    if restarts.wanted(FLAGS):
      sys.exit(restarts.supervise(sys.argv[1:], FLAGS.max_restarts))
    with contextlib.ExitStack() as held:
      _run(argv, held)
  except BaseException:
    stop.ignore()
    raise
  stop.at("ending")


def _run(argv: Sequence[str], held: contextlib.ExitStack) -> None:
  try:
    trainer = _open(argv, held)
  except error_text.REFUSALS as error:
    sys.exit(f"error: {refusal.text(error, FLAGS.logdir)}")
  except FloatingPointError as error:
    sys.exit(f"stopped: {error}")
  except StepError as error:
    sys.exit(failed(error))
  if trainer is None:
    return
  try:
    if FLAGS.mode == "eval":
      trainer.evaluate()
    else:
      trainer.train()
  except FloatingPointError as error:
    sys.exit(f"stopped: {error}")
  except StepError as error:
    sys.exit(failed(error))
  except OSError as error:
    why = error_text.of(error, FLAGS.logdir)
    sys.exit(f"error: {why}; what was saved before is whole")


def _open(argv: Sequence[str], held: contextlib.ExitStack) -> Trainer | None:
  """Shows what will run and makes it ready; None if there is nothing left to do."""
  if len(argv) > 1:
    raise ValueError(f"unexpected arguments: {' '.join(argv[1:])}")
  params, changes = _prepare()
  if FLAGS.mode == "plan":
    stop.at("planning")
    # A plan makes many small objects that all stay: looking for garbage among them
    # again and again would take nearly half of the time.
    gc.disable()
    try:
      if FLAGS.search:
        return show_search(params, FLAGS.hardware, FLAGS.model, overrides())
      return show_plan(params, changes, FLAGS.hardware)
    finally:
      gc.enable()
  if FLAGS.mode == "inspect":
    stop.at("planning")
    return show(inspect(FLAGS.inspect, params, plan_lib.make(params)))
  # A plan needs nothing of it, and its imports take time.
  from tfpipe.program.startup import Startup

  startup = Startup(params, FLAGS)
  stop.at("planning")
  plan = plan_lib.make(params)
  show(first_screen(params, changes, plan))
  if note := modes.without_effect(FLAGS.mode, params, FLAGS.set):
    show(note)
  if FLAGS.mode == "train_and_eval" and params.eval_input is None:
    show("no evaluation: the experiment has no evaluation input (Test)")
  if FLAGS.dry_run:
    return startup.try_step(plan, held)
  return startup.set_up(plan, held)


if __name__ == "__main__":
  stop.end_after(lambda: app.run(main, flags_parser=parse_flags))
