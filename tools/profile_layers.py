r"""Times the layers of an experiment's network on a device, for plans that use times.

  python -m tools.profile_layers --model=lm.shakespeare.Char --num_micro_batches=4 \
    --threads=1 --output=times.json
  python -m tfpipe.trainer --mode=plan --model=lm.shakespeare.Char \
    --num_micro_batches=4 --set pipeline.intra_op_threads=1 --layer_times=times.json

prints, for each layer and one micro-batch, the time of the forward, of the gradient of
its inputs, of the gradient of its weights and of both at once, its share of these
beside that by FLOPs, and the bytes that it hands on; and its part of the update of all
weights, by their number. On CPUs of so many threads each (`--threads`), as many devices
work at the same time as the run has partitions and the machine has room for: stages
share its memory and caches. Layers are timed as stages of their own, in a copy of the
network on each device, and scaled to add up to the network cut into a stage for each;
by how much is printed last.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from tfpipe import error_text, layer_times, model, text_files
from tfpipe.cost import LayerCost
from tfpipe.lazy import tf
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.plan import align
from tfpipe.program import quiet, refusal, stop, streams
from tfpipe.program.failure import StepError, failed
from tfpipe.program.profile_layers import Profile, profile
from tfpipe.trainer import model_params
from tfpipe.units import format_bytes, format_secs

FLAGS = flags.FLAGS
# Flags of the trainer that mean the same here; its others mean nothing.
SHARED = ("model", "num_micro_batches", "num_partitions", "set")
for _name in SHARED:
  flags.declare_key_flag(_name)

_DEVICE = flags.DEFINE_string(
  "device", "auto", "auto (a GPU if there is one), cpu, gpu, or a name such as CPU:0."
)
_THREADS = flags.DEFINE_integer(
  "threads",
  None,
  "Short for pipeline.intra_op_threads: 1 for stages that have a core each.",
)
_OUTPUT = flags.DEFINE_string("output", None, "File to write the times to, as JSON.")

_PARTS = ("forward", "input_gradient", "weight_gradient", "both", "update")


def table(profile: Profile, costs: Sequence[LayerCost]) -> str:
  """Draws the times of the layers, a line for each, beside what FLOPs say of them."""
  rows = [["layer", "forward", "input grad.", "weight grad.", "both", "update"]]
  rows[0] += ["share", "by FLOPs", "border"]
  layers = profile.times.layers
  by_flops = layer_times.from_costs(costs).layers
  total = sum(layer.total for layer in layers) or 1.0
  total_flops = sum(layer.total for layer in by_flops) or 1.0
  for layer, flops, cost in zip(layers, by_flops, costs, strict=True):
    rows.append(
      [
        layer.name,
        *(format_secs(getattr(layer, part)) for part in _PARTS),
        f"{layer.total / total:.1%}",
        f"{flops.total / total_flops:.1%}",
        format_bytes(cost.border_bytes),
      ]
    )
  sums = [sum(getattr(layer, part) for layer in layers) for part in _PARTS]
  rows.append(["all", *map(format_secs, sums), "", "", ""])
  return align(rows)


def check(profile: Profile) -> str:
  """Says how well the times of layers add up, and what a step takes besides."""
  names = ("forward", "input gradient", "weight gradient", "both at once")
  rows = [["", "layers as stages", "a stage a device", "factor"]]
  for name, alone, whole in zip(names, profile.alone, profile.whole, strict=True):
    factor = f"{whole / alone:.3f}" if alone else "1"
    rows.append([name, format_secs(alone), format_secs(whole), factor])
  unlike = [a for a in zip(profile.alone, profile.whole, strict=True) if _far(*a)]
  end = f"end of a step besides the update: {format_secs(profile.times.end)}"
  crowding = profile.times.crowding
  crowded = ""
  if crowding.many > crowding.few:
    crowded = (
      f"\nwith {crowding.many:g} micro-batches in flight on a device in place of "
      f"{crowding.few:.4g}: {crowding.factor:.3f} times as long"
    )
  return f"{align(rows)}\n{end}{crowded}" + (_BUSY if unlike else "")


def _far(alone: float, whole: float) -> bool:
  """Says whether two measurements of one thing are more than twice apart."""
  return max(alone, whole) > 2 * min(alone, whole)


_BUSY = (
  "\nwarning: the layers as stages and as one differ more than twofold; if the "
  "machine was busy with something else, measure again"
)


def _check_flags() -> pathlib.Path:
  """Refuses flags that are missing, bad, or without effect; gives the output file."""
  if not FLAGS.model:
    raise ValueError("--model is missing; it names an experiment")
  own = {_DEVICE.name, _THREADS.name, _OUTPUT.name}
  for flag in FLAGS.get_flags_for_module("tfpipe.trainer"):
    if flag.present and flag.name not in SHARED:
      known = sorted({*SHARED, *own})
      raise ValueError(
        f"--{flag.name} has no effect here; flags are --{', --'.join(known)}"
      )
  if not _OUTPUT.value:
    raise ValueError("--output is missing; it names the file to write")
  path = text_files.home(_OUTPUT.value, f"--output={_OUTPUT.value}")
  if path.is_dir():
    raise ValueError(f"--output={_OUTPUT.value}: is a folder, not a file")
  if not path.absolute().parent.is_dir():
    raise ValueError(
      f"--output={_OUTPUT.value}: there is no folder {path.absolute().parent}"
    )
  if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
    raise ValueError(f"--output={_OUTPUT.value}: is not writable")
  return path


def _params() -> Params:
  short = {name: FLAGS[name].value for name in ("num_micro_batches", "num_partitions")}
  short["intra_op_threads"] = _THREADS.value
  given = [f"pipeline.{key}={n}" for key, n in short.items() if n is not None]
  return model_params(FLAGS.model, [*FLAGS.set, *given])


def _devices(params: Params) -> tuple[str, ...]:
  """Finds the devices that work at the same time, which starts TensorFlow."""
  pipe, spec = params.pipeline, _DEVICE.value
  placement.set_intra_op_threads(pipe.intra_op_threads)
  if spec == "auto":
    spec = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
  if spec != "cpu" or not pipe.intra_op_threads:
    return placement.resolve(spec, 1)
  room = len(os.sched_getaffinity(0)) // pipe.intra_op_threads
  return placement.resolve(spec, max(1, min(pipe.num_partitions, room)))


def _measure(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise ValueError(f"unexpected arguments: {' '.join(argv[1:])}")
  path = _check_flags()
  try:
    model.check_devices(_DEVICE.value, 1)
  except ValueError as error:
    raise ValueError(f"--device={_DEVICE.value}: {error}") from error
  params = _params()
  costs = Network(params).costs(params.pipeline.num_micro_batches)
  with quiet.start_up():
    devices = _devices(params)
  stop.at("profiling")
  found = profile(params, devices)
  layer_times.write(path, found.times)
  print(
    f"{params.name} on {found.times.device}, {found.times.batch} rows a micro-batch"
  )
  print(f"{table(found, costs)}\n\n{check(found)}\nwrote {path}")


def main(argv: Sequence[str]) -> None:
  """Measures what the flags say, writes it and prints it."""
  try:
    _measure(argv)
  except error_text.REFUSALS as error:
    sys.exit(f"error: {refusal.text(error)}")
  except StepError as error:
    sys.exit(failed(error))


if __name__ == "__main__":
  streams.outlive_readers()
  stop.listen()
  stop.end_after(lambda: app.run(main))
