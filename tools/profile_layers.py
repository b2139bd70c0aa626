"""Times the layers of an experiment's network on a device, for plans that use times.

  python -m tools.profile_layers --model=lm.shakespeare.Char --num_micro_batches=4 \
    --threads=1 --output=times.json
  python -m tfpipe.trainer --mode=plan --model=lm.shakespeare.Char \
    --num_micro_batches=4 --set pipeline.intra_op_threads=1 --layer_times=times.json

prints, for each layer and one micro-batch, the time of the forward, of the gradient of
its inputs and of the gradient of its weights, its share of these beside that by FLOPs,
and the bytes that it hands on; and its part of the update of all weights, by their
number. Layers that differ in nothing but their names are timed
once. Layers timed alone are scaled to add up to all of them timed as one cell; by how
much is printed last, with how the two gradients apart compare with one function that
gives both.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from tfpipe import layer_times, model
from tfpipe.cost import LayerCost
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.plan import align
from tfpipe.program.profile_layers import Profile, profile
from tfpipe.trainer import REFUSALS, model_params
from tfpipe.units import format_bytes, format_secs

FLAGS = flags.FLAGS
# Flags of the trainer that mean the same here; its others mean nothing.
SHARED = ("model", "num_micro_batches", "set")
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

_PARTS = ("forward", "input_gradient", "weight_gradient", "update")


def table(profile: Profile, costs: Sequence[LayerCost]) -> str:
  """Draws the times of the layers, a line for each, beside what FLOPs say of them."""
  rows = [["layer", "forward", "input grad.", "weight grad.", "update"]]
  rows[0] += ["share", "by FLOPs", "border"]
  layers = profile.times.layers
  by_flops = layer_times.from_costs(costs).layers
  total = sum(layer.total for layer in layers) or 1.0
  total_flops = sum(layer.total for layer in by_flops) or 1.0
  for layer, flops, size in zip(layers, by_flops, profile.border_bytes, strict=True):
    rows.append(
      [
        layer.name,
        *(format_secs(getattr(layer, part)) for part in _PARTS),
        f"{layer.total / total:.1%}",
        f"{flops.total / total_flops:.1%}",
        format_bytes(size),
      ]
    )
  sums = [sum(getattr(layer, part) for layer in layers) for part in _PARTS]
  rows.append(["all", *map(format_secs, sums), "", "", ""])
  return align(rows)


def check(profile: Profile) -> str:
  """Says how well times add up: over layers, and over the two gradients."""
  names = ("forward", "input gradient", "weight gradient", "both gradients at once")
  rows = [["", "layers alone", "as one cell", "factor"]]
  for name, alone, whole in zip(names, profile.alone, profile.whole, strict=True):
    factor = f"{whole / alone:.3f}" if alone else "1"
    rows.append([name, format_secs(alone), format_secs(whole), factor])
  unlike = [a for a in zip(profile.alone, profile.whole, strict=True) if _far(*a)]
  apart, at_once = sum(profile.whole[1:3]), profile.whole[3]
  ratio = f"{apart / at_once:.3f}" if at_once else "1"
  return (
    f"{align(rows)}\nboth gradients, apart against at once: {format_secs(apart)} / "
    f"{format_secs(at_once)} = {ratio}" + (_BUSY if unlike else "")
  )


def _far(alone: float, whole: float) -> bool:
  """Says whether two measurements of one thing are more than twice apart."""
  return max(alone, whole) > 2 * min(alone, whole)


_BUSY = (
  "\nwarning: the layers alone and as one cell differ more than twofold; if the "
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
  path = pathlib.Path(_OUTPUT.value).expanduser()
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
  short = {"num_micro_batches": FLAGS.num_micro_batches}
  short["intra_op_threads"] = _THREADS.value
  given = [f"pipeline.{key}={n}" for key, n in short.items() if n is not None]
  return model_params(FLAGS.model, [*FLAGS.set, *given])


def _device(params: Params) -> str:
  """Finds the device, which starts TensorFlow."""
  placement.set_intra_op_threads(params.pipeline.intra_op_threads)
  return placement.resolve(_DEVICE.value, 1)[0]


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
  found = profile(params, _device(params))
  layer_times.write(path, found.times)
  print(
    f"{params.name} on {found.times.device}, {found.times.batch} rows a micro-batch; "
    f"{found.num_timed} of {len(costs)} layers timed, the others equal them"
  )
  print(f"{table(found, costs)}\n\n{check(found)}\nwrote {path}")


def main(argv: Sequence[str]) -> None:
  """Measures what the flags say, writes it and prints it."""
  try:
    _measure(argv)
  except REFUSALS as error:
    sys.exit(f"error: {error.args[0] if isinstance(error, LookupError) else error}")


if __name__ == "__main__":
  app.run(main)
