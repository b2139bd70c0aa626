"""The Params tree of a run: task, input, pipeline and training."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator

from tfpipe import backend, error_text, hardware, saving, schedule
from tfpipe.params import InstantiableParams, Params
from tfpipe.spelling import nearest

REMAT = ("none", "cell", "layer")
SPIKE_POLICIES = ("warn", "skip", "stop")
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
DEVICE_KINDS = ("auto", "cpu", "gpu")
ZB_AUTO = "zb_auto"
SCHEDULES = (*schedule.NAMES, ZB_AUTO)
"""By name; `zb_auto` is made for a run's own times, all others for any."""
_LOCAL = re.compile(r"^(/job:localhost/replica:0/task:0)?/?(device:)?", re.IGNORECASE)
_REFUSALS = (ValueError, TypeError, LookupError, AttributeError)
_MAX_INT = 2**63 - 1  # of TensorFlow
SCHEDULE_OPTIONS = ("stages_per_device", "group_size", "num_pairs")


def PipelineParams() -> Params:
  """Gives the Params that say how the network is cut and scheduled."""
  p = Params()
  p.Define(
    "num_partitions",
    1,
    "Number K of partitions, one a device. A partition is one cell of layers, or as "
    "many as the schedule has stages a device.",
  )
  p.Define("num_micro_batches", 1, "Number M of micro-batches of a mini-batch.")
  p.Define(
    "schedule",
    "gpipe",
    f"Order of the actions: {', '.join(SCHEDULES)}, or a file .csv or .json.",
  )
  p.Define(
    "stages_per_device",
    0,
    "Number V of cells on a device, for schedules that have a choice; 0: their own.",
  )
  p.Define(
    "group_size",
    0,
    "Micro-batches that go through a device's stages together, for interleaved "
    "schedules; 0: their own.",
  )
  p.Define(
    "num_pairs", 0, "Pairs of pipes in opposite directions, for chimera; 0: its own."
  )
  p.Define(
    "remat",
    "cell",
    "What the forward pass keeps: 'none' everything, 'cell' each cell's input (the "
    "cell is computed again before its backward), 'layer' each layer's input.",
  )
  p.Define("lengths", (), "Layers in each cell; empty: cut so that times are balanced.")
  p.Define(
    "layer_times",
    "",
    "File of measured times of the layers (tools/profile_layers.py), for the cut and "
    "the prediction; empty: by FLOPs.",
  )
  p.Define(
    "compute_dtype",
    "float32",
    "What layers compute in and hand on: float32, bfloat16 or float16. Weights, slots, "
    "sums of gradients, norms, softmax, losses and metrics are float32 in any case. "
    "With float16 the loss is scaled, see task.learner.loss_scale.",
  )
  p.Define(
    "xla",
    False,
    "Whether each cell is compiled with XLA. Compiled code does not check that ids and "
    "labels are in range.",
  )
  p.Define(
    "intra_op_threads",
    0,
    "Threads that an operation on a CPU may use, 0: as many as there are. With 1, a "
    "cell also runs its operations one after the other, so that each logical CPU is "
    "one thread: best with as many partitions as cores.",
  )
  p.Define(
    "devices",
    "auto",
    "'auto' (GPUs if there are any, else logical CPUs), 'cpu', 'gpu', or device names "
    "separated by commas, one per partition.",
  )
  backend.define(p)
  return p


def TrainParams() -> Params:
  """Gives the Params of the training loop."""
  p = Params()
  p.Define("max_steps", 1000, "Mini-batches to train on.")
  p.Define("seed", 0, "Seed of start values, dropout and drop-path.")
  p.Define(
    "deterministic",
    False,
    "Whether TensorFlow may only take operations that give the same bits each time. On "
    "CPUs this changes nothing; on GPUs it can cost time, and an operation that has no "
    "such version is an error at the first step.",
  )
  p.Define("log_interval_steps", 10, "Steps between lines of progress.")
  backend.define_steps(p)
  saving.define(p)
  p.Define(
    "hardware",
    "",
    "What the devices are, by the name that --hardware has for it, to measure model "
    "FLOP/s by (MFU); empty: not told.",
  )
  p.Define(
    "eval_interval_steps", 0, "Steps between evaluations; 0: only after the last step."
  )
  p.Define(
    "loss_spike",
    0.0,
    "A loss above this many medians of the last 32 is a spike. 0 looks for none.",
  )
  p.Define(
    "on_loss_spike",
    "warn",
    "What a spike does: 'warn' says so, 'skip' makes no update of it, 'stop' ends the "
    "run before it.",
  )
  p.Define(
    "step_timeout_secs",
    0.0,
    "Seconds after which a step, or waiting for its data, ends the run and says what "
    "hangs; the first step takes longest. 0 waits for ever.",
  )
  return p


def ModelParams(name: str, task: Params, train: Params, test: Params | None) -> Params:
  """Gives the tree of a run.

  Args:
    name: of the experiment.
    task: Params of its task.
    train: Params of its training input.
    test: Params of its evaluation input, None if it has none.
  """
  p = Params()
  p.Define("name", name, "Name of the experiment; `--model` sets it.")
  p.Define("task", task, "The network and how it learns.")
  p.Define("input", train, "Training input.")
  p.Define("eval_input", test, "Evaluation input, None if there is none.")
  p.Define("pipeline", PipelineParams(), "How the network is cut and scheduled.")
  p.Define("train", TrainParams(), "The training loop.")
  return p


def check(p: Params) -> None:
  """Checks pipeline and training Params, and that task and inputs are such.

  Raises:
    ValueError: naming the field, its value and what is allowed.
  """
  _check_kind(p, "task", "Layers")
  if "learner" in p.task:
    _check_kind(p, "task.learner", "state_bytes")
  _check_kind(p, "input", "Specs")
  if p.eval_input is not None:
    _check_kind(p, "eval_input", "Specs")
    if p.eval_input.repeat:
      raise ValueError("eval_input.repeat=True: must be False, or it would never end")
  elif p.train.eval_interval_steps:
    raise ValueError(
      f"train.eval_interval_steps={p.train.eval_interval_steps}: must be 0, for there "
      "is no evaluation input (Test)"
    )
  for key in ("num_partitions", "num_micro_batches"):
    _check_count("pipeline", p.pipeline, key, 1)
  _check_schedule(p.pipeline)
  _check_count("pipeline", p.pipeline, "intra_op_threads", 0)
  _check_choice("pipeline", p.pipeline, "remat", REMAT)
  _check_choice("pipeline", p.pipeline, "compute_dtype", COMPUTE_DTYPES)
  _check_loss_scale(p)
  if not isinstance(p.pipeline.xla, bool):
    raise ValueError(f"pipeline.xla={p.pipeline.xla!r}: must be True or False")
  lengths = p.pipeline.lengths
  if not isinstance(lengths, (tuple, list)) or not all(
    _is_count(length, 1) for length in lengths
  ):
    raise ValueError(
      f"pipeline.lengths={lengths!r}: must be empty or hold a number of layers, at "
      "least 1, for each cell"
    )
  if not isinstance(p.pipeline.layer_times, str):
    raise ValueError(
      f"pipeline.layer_times={p.pipeline.layer_times!r}: must be the name of a file, "
      "or empty"
    )
  for key in ("log_interval_steps", "save_interval_steps", "keep_checkpoints"):
    _check_count("train", p.train, key, 1)
  if not isinstance(p.train.deterministic, bool):
    raise ValueError(
      f"train.deterministic={p.train.deterministic!r}: must be True or False"
    )
  for key in ("max_steps", "eval_interval_steps", "seed"):
    _check_count("train", p.train, key, 0)
  saving.check(p.train, evaluates=p.eval_input is not None)
  _check_guards(p.train)
  _check_hardware(p.train.hardware)
  backend.check(p)


@contextlib.contextmanager
def naming(owner: str) -> Iterator[None]:
  """Names the part of the Params in front of what it is refused for."""
  try:
    yield
  except _REFUSALS as error:
    kind = next(kind for kind in _REFUSALS if isinstance(error, kind))
    raise kind(f"{owner}: {error_text.of(error)}") from error


def _check_hardware(name: str) -> None:
  if not isinstance(name, str):
    raise ValueError(f"train.hardware={name!r}: must be a name, or empty")
  try:
    if name:
      hardware.find(name)
  except (LookupError, ValueError, TypeError) as error:
    raise ValueError(f"train.hardware={name!r}: {error.args[0]}") from error


def schedule_options(name: str) -> tuple[str, ...]:
  """Lists which of SCHEDULE_OPTIONS a schedule has; a file has none."""
  if name == ZB_AUTO:
    return ("stages_per_device",)
  return schedule.OPTIONS.get(name, ())


def check_devices(spec: str, num_devices: int) -> None:
  """Checks a device specification without touching a device.

  Args:
    spec: `auto` (GPUs if there are any, else logical CPUs), `cpu`, `gpu`, or device
      names separated by commas, one per stage; naming one twice puts two stages on it.
    num_devices: number of devices the schedule needs.

  Raises:
    ValueError: the specification is malformed or names another number of devices.
  """
  if spec in DEVICE_KINDS:
    return
  names = str(spec).split(",")
  for name in names:
    if not re.fullmatch(r"(.*/)?(device:)?[A-Za-z]+:\d+", name.strip()):
      raise ValueError(
        f"pipeline.devices={spec!r}: {name!r} is not a device name such as 'GPU:0', "
        f"nor one of {', '.join(DEVICE_KINDS)}{nearest(name, DEVICE_KINDS)}"
      )
  if len(names) != num_devices:
    raise ValueError(
      f"pipeline.devices={spec!r} names {len(names)} devices; the schedule needs "
      f"{num_devices}"
    )


def check_cpus(spec: str, num_devices: int) -> None:
  """Checks that logical CPUs are numbered below the number of devices.

  The CPU is split up to the last one that is named; those between would be idle.

  Args:
    spec: as `check_devices` allows.
    num_devices: number of devices the schedule needs.

  Raises:
    ValueError: naming the first that lies beyond.
  """
  for name in spec.split(","):
    kind, _, index = _LOCAL.sub("", name.strip()).rpartition(":")
    if kind.upper() == "CPU" and int(index) >= num_devices:
      raise ValueError(
        f"pipeline.devices={spec!r}: {name.strip()!r} must be one of as many logical "
        f"CPUs as the schedule needs devices, {num_devices}: CPU:0 to CPU:"
        f"{num_devices - 1}"
      )


def same_devices(spec: str, num_devices: int) -> tuple[int, ...]:
  """Gives for each device the first that has the same name: itself, unless two share.

  Args:
    spec: as `check_devices` allows.
    num_devices: number of devices the schedule needs.
  """
  if spec in DEVICE_KINDS:
    return tuple(range(num_devices))
  names = [_LOCAL.sub("", name.strip()).lower() for name in spec.split(",")]
  return tuple(map(names.index, names))


def _check_schedule(pipe: Params) -> None:
  """Checks that there is such a schedule, and that it has the options that are set."""
  name = pipe.schedule
  if not isinstance(name, str) or not schedule.is_file(name):
    _check_choice("pipeline", pipe, "schedule", SCHEDULES, ", or a file .csv or .json")
  for option in SCHEDULE_OPTIONS:
    _check_count("pipeline", pipe, option, 0)
    having = [known for known in SCHEDULES if option in schedule_options(known)]
    if pipe.Get(option) and name not in having:
      raise ValueError(
        f"pipeline.{option}={pipe.Get(option)}: must be 0 with schedule {name}; only "
        f"{', '.join(having)} take it"
      )


def _check_loss_scale(p: Params) -> None:
  """Refuses settings of a loss scale that there is not."""
  if p.pipeline.compute_dtype == "float16":
    return
  for key in ("loss_scale", "loss_scale_steps"):
    value = p.task.learner.Get(key)
    if value:
      raise ValueError(
        f"task.learner.{key}={value!r}: must be 0 with pipeline.compute_dtype="
        f"{p.pipeline.compute_dtype!r}; only float16 scales the loss"
      )


def _check_kind(p: Params, key: str, method: str) -> None:
  value = p.Get(key)
  if not isinstance(value, InstantiableParams) or not hasattr(value.cls, method):
    found = value.cls if isinstance(value, InstantiableParams) else value
    raise ValueError(f"{key}={found!r}: must be the Params of a class with {method}")


def _check_guards(train: Params) -> None:
  _check_number("train", train, "loss_spike", 1)
  _check_choice("train", train, "on_loss_spike", SPIKE_POLICIES)
  if train.on_loss_spike != "warn" and not train.loss_spike:
    raise ValueError(
      f"train.on_loss_spike={train.on_loss_spike!r} has no effect with "
      "train.loss_spike=0, which looks for none"
    )
  _check_number("train", train, "step_timeout_secs", 0)


def _check_number(owner: str, p: Params, key: str, least: float) -> None:
  value = p.Get(key)
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not number or not (value == 0 or least < value < math.inf):
    raise ValueError(
      f"{owner}.{key}={value!r}: must be 0, or a finite number above {least}"
    )


def _is_count(value: object, least: int) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_count(owner: str, p: Params, key: str, least: int) -> None:
  value = p.Get(key)
  if not _is_count(value, least):
    raise ValueError(
      f"{owner}.{key}={value!r}: must be a whole number, at least {least}"
    )
  if key != "seed" and value > _MAX_INT:  # a seed is hashed
    raise ValueError(f"{owner}.{key}={value!r}: must be at most {_MAX_INT}")


def _check_choice(
  owner: str, p: Params, key: str, allowed: tuple[str, ...], or_else: str = ""
) -> None:
  value = p.Get(key)
  if value not in allowed:
    raise ValueError(
      f"{owner}.{key}={value!r}: must be one of {', '.join(allowed)}{or_else}"
      f"{nearest(str(value), allowed)}"
    )
