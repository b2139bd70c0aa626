"""The sections of `benchmark` that compare steps with PyTorch's."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from tools.benchmark_runs import (
  Bench,
  Figure,
  amoebanet,
  decoder,
  least,
)

_MICRO_BATCHES = 8
# How PyTorch trains a Transformer, and how many times faster tfpipe should be.
_GOALS = {"single": 1.2, "gpipe": 1.5, "1f1b": 1.5, "torchgpipe": 3.0}


class Sizes(NamedTuple):
  """Sizes of a Transformer, and its cut in two.

  Attributes:
    name: says what is not as in the first of SIZES.
    dim: width.
    layers: number of blocks.
    length: tokens in a row.
    vocab: number of tokens.
    blocks: those of the first partition.
  """

  name: str
  dim: int = 256
  layers: int = 8
  length: int = 64
  vocab: int = 128
  blocks: int = 4

  def torch(self, how: str) -> list[str]:
    """Gives the command for PyTorch."""
    rows = 2 * _MICRO_BATCHES
    sizes = (self.dim, self.layers, self.length, rows, self.vocab, _MICRO_BATCHES)
    lengths = (1 + self.blocks, self.layers - self.blocks + 1)  # embedding, head
    return [
      "tools.benchmark_torch",
      f"--how={how}",
      f"--sizes={','.join(map(str, sizes))}",
      f"--lengths={','.join(map(str, lengths))}",
    ]

  def ours(self, schedule: str, remat: str = "none", partitions: int = 2) -> list[str]:
    """Gives the command for tfpipe, cut at the same place."""
    lengths = (1 + self.blocks, self.layers - self.blocks + 2)  # norm, softmax
    return decoder(
      partitions,
      _MICRO_BATCHES,
      layers=self.layers,
      dim=self.dim,
      length=self.length,
      vocab=self.vocab,
      remat=remat,
      pipeline__schedule=schedule,
      pipeline__lengths=lengths if partitions == 2 else (),
    )


# With many tokens the head takes more than half of a step.
SIZES = (
  Sizes(""),
  Sizes(" D=512 T=128", dim=512, layers=4, length=128, blocks=2),
  Sizes(" V=32768", vocab=32768, blocks=8),
)


def installed(*names: str) -> bool:
  """Says whether packages are there, and prints which are not."""
  missing = [name for name in names if importlib.util.find_spec(name) is None]
  for name in missing:
    print(f"{name} is not installed; what needs it is left out")
  return not missing


def peers(bench: Bench) -> list[Figure]:
  """PyTorch: one thread, torchgpipe, and torch.distributed.pipelining."""
  if not installed("torch"):
    return []
  has_torchgpipe = installed("torchgpipe")
  goals = dict(_GOALS)
  if not has_torchgpipe:
    del goals["torchgpipe"]
  figures = [figure for sizes in SIZES for figure in transformer(bench, sizes, goals)]
  return [*figures, *(amoebanets(bench) if has_torchgpipe else [])]


def transformer(bench: Bench, sizes: Sizes, goals: dict[str, float]) -> list[Figure]:
  """Compares a Transformer of some sizes."""
  names = {how: f"torch {how}{sizes.name}" for how in goals}
  runs = {names[how]: sizes.torch(how) for how in goals}
  own = {
    "single": sizes.ours("gpipe", partitions=1),
    "gpipe": sizes.ours("gpipe"),
    "1f1b": sizes.ours("1f1b"),
    # torchgpipe knows one schedule; of those here, this one waits least.
    "torchgpipe": sizes.ours("1f1b", remat="cell"),
  }
  runs |= {f"against {names[how]}": own[how] for how in goals}
  found = bench.turns(runs)
  figures = []
  for how, goal in goals.items():
    other = found[names[how]]["secs"]
    ours = found[f"against {names[how]}"]["secs"]
    name = f"PyTorch {how}{sizes.name}"
    figures.append(least(name, other / ours, goal, other, ours))
  return figures


def amoebanets(bench: Bench) -> list[Figure]:
  """Compares an AmoebaNet with torchgpipe's, both cut by measured times.

  tfpipe's is cut by operations if the benchmark is quick.
  """
  command = ["tools.benchmark_torch", "--how=torchgpipe", "--amoebanet=18,64,64,16,8"]
  times = bench.amoebanet_times
  runs = {
    "torchgpipe AmoebaNet": command,
    "AmoebaNet, K=2, remat": amoebanet(2, layer_times=times, remat="cell"),
  }
  found = bench.turns(runs)
  other, own = (found[name]["secs"] for name in runs)
  return [least("PyTorch torchgpipe AmoebaNet", other / own, 1.5, other, own)]
