"""Which settings of a pipeline a search tries, the most promising ones first."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from tfpipe import draft, model
from tfpipe.memory_bound import state_bytes
from tfpipe.network import Network
from tfpipe.params import Params

__all__ = ["FLAGS", "Settings", "least_partitions", "promising"]

Settings = dict[str, Any]
"""Values of Params of the pipeline, by name."""

FLAGS = (
  "num_partitions",
  "num_micro_batches",
  "schedule",
  "stages_per_device",
  "remat",
)
"""Those that are flags of the trainer."""

MOST_SEARCHED = 128
"""Most pairs of a stage and a micro-batch with which `zb_auto` is tried."""

MOST_PARTITIONS = 64
"""Most partitions that are tried, unless many are needed: then four times as many."""

# In fours, by how often one of them is best.
_PROMISE = (
  *("1f1b", "zb_h1", "interleaved", "zb_v"),
  *("gpipe", "zb_h2", "zb_interleaved", "eager_1f1b"),
  *("chimera", "dualpipe_v", "looped_bfs", "zb_auto"),
  *("chimera_doubling", "chimera_halving"),
)


def promising(
  pipe: Params, network: Network, given: Collection[str], memory_bytes: int
) -> list[tuple[int, Settings]]:
  """Lists settings with their places in the order of plain schedules first.

  Args:
    pipe: the Params `pipeline` of a run.
    network: of that run.
    given: names that stay as they are in `pipe`.
    memory_bytes: of a device.
  """
  found: list[tuple[int, int, Settings]] = []
  partitions = _partitions(network, memory_bytes)
  for number in _given_or(pipe, "num_partitions", given, partitions):
    micro_batches = _micro_batches(network, number)
    remats = ("cell", "none", "layer")
    for (rank, parts), (other, remat) in itertools.product(
      enumerate(_given_or(pipe, "num_micro_batches", given, micro_batches)),
      enumerate(_given_or(pipe, "remat", given, remats)),
    ):
      for name in _given_or(pipe, "schedule", given, model.SCHEDULES):
        third = _PROMISE.index(name) // 4 if name in _PROMISE else 0
        for options in _options(pipe, name, given, number, parts):
          settings = {
            "num_partitions": number,
            "num_micro_batches": parts,
            "schedule": name,
            "stages_per_device": options["stages_per_device"],
            "remat": remat,
            **options,
          }
          found.append((rank + other + third, _effort(pipe, settings), settings))
  order = sorted(range(len(found)), key=lambda place: found[place][:2])
  return [(place, found[place][2]) for place in order]


def least_partitions(network: Network, memory_bytes: int) -> int:
  """Returns how many devices hold what is there all the time, if all are full."""
  return max(1, -(-sum(map(state_bytes, network.states)) // memory_bytes))


def _effort(pipe: Params, settings: Settings) -> int:
  return draft.effort(pipe.Copy().Set(**settings))


def _given_or(
  pipe: Params, name: str, given: Collection[str], candidates: Sequence[Any]
) -> Sequence[Any]:
  return (pipe.Get(name),) if name in given else candidates


def _partitions(network: Network, memory_bytes: int) -> list[int]:
  """Lists powers of two, three times those, and one a layer; if they hold the state."""
  layers = len(network.names)
  least = least_partitions(network, memory_bytes)
  most = min(layers, max(MOST_PARTITIONS, 4 * least))
  powers = [2**power for power in range(most.bit_length())]
  numbers = sorted({*powers, *(3 * power for power in powers), layers})
  return [n for n in numbers if least <= n <= most] or [layers]


def _micro_batches(network: Network, partitions: int) -> list[int]:
  """Lists divisors of the batch nearest to 4, 2, 8, 1 times the partitions, and all."""
  allowed = network.micro_batches
  nearest = (min(allowed, key=lambda n: abs(n - f * partitions)) for f in (4, 2, 8, 1))
  return list(dict.fromkeys((*nearest, allowed[-1])))


def _options(
  pipe: Params,
  name: str,
  given: Collection[str],
  partitions: int,
  micro_batches: int,
) -> list[dict[str, int]]:
  """Lists the options of a schedule that are tried; 0 is its own."""
  if name == model.ZB_AUTO and partitions * micro_batches > MOST_SEARCHED:
    return []
  having = model.schedule_options(name)
  tried = {
    "stages_per_device": (0,),
    "group_size": (0,),
    "num_pairs": (0, 2) if "num_pairs" in having and partitions % 4 == 0 else (0,),
  }
  if name in ("interleaved", "looped_bfs", "zb_interleaved"):
    tried["stages_per_device"] = (2, 3, 4)
  elif name == model.ZB_AUTO:
    tried["stages_per_device"] = (0, 2)
  for option in set(tried).intersection(given):
    value = pipe.Get(option)
    if option in having:
      tried[option] = (value,)
    elif option == "stages_per_device" and value:
      return []
  return [
    dict(zip(tried, values, strict=True))
    for values in itertools.product(*tried.values())
  ]
