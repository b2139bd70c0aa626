"""Runs some steps of the benchmark's Transformer in PyTorch; see `benchmark`.

  python -m tools.benchmark_torch --how=gpipe

`single`: one thread, the micro-batches one after the other. `torchgpipe`: two
partitions in one process, recomputing. `gpipe`, `1f1b`: torch.distributed.pipelining,
two processes over gloo, keeping all activations. One thread for each partition.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from tools.benchmark_step import STEPS, measure

HOWS = ("single", "torchgpipe", "gpipe", "1f1b")
_HOW = flags.DEFINE_enum("how", "single", HOWS, "How it is trained.")
_SIZES = flags.DEFINE_list(
  "sizes", "256,8,64,16,128,8", "Width, layers, length, rows, tokens, micro-batches."
)

torch: Any = importlib.import_module("torch")
nn = torch.nn


class Block(nn.Module):
  """Attention and a feed-forward part, each behind a norm and added to its input."""

  def __init__(self, dim: int) -> None:
    super().__init__()
    self.heads = max(1, dim // 64)
    self.attention_norm, self.ff_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
    self.qkv, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    self.hidden, self.back = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

  def forward(self, x: Any) -> Any:
    """Maps [rows, length, dim] to the same."""
    rows, length, dim = x.shape
    parts = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
    q, k, v = (
      part.reshape(rows, length, self.heads, -1).transpose(1, 2) for part in parts
    )
    attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.output(attended.transpose(1, 2).reshape(rows, length, dim))
    return x + self.back(torch.relu(self.hidden(self.ff_norm(x))))


class Embedding(nn.Module):
  """Looks tokens up and scales them by the root of the width."""

  def __init__(self, tokens: int, dim: int) -> None:
    super().__init__()
    self.table, self.scale = nn.Embedding(tokens, dim), dim**0.5

  def forward(self, ids: Any) -> Any:
    """Maps [rows, length] to [rows, length, dim]."""
    return self.table(ids) * self.scale


def layers(dim: int, count: int, tokens: int) -> list[Any]:
  """Makes all layers in order."""
  torch.manual_seed(0)
  blocks = [Block(dim) for _ in range(count)]
  head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, tokens))
  return [Embedding(tokens, dim), *blocks, head]


def loss_of(logits: Any, labels: Any) -> Any:
  """Gives the mean cross entropy."""
  return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Trained:
  """The network, its batch and its optimizer."""

  def __init__(self) -> None:
    sizes = [int(text) for text in _SIZES.value]
    dim, self.count, length, rows, tokens, self.micro_batches = sizes
    self.layers = layers(dim, self.count, tokens)
    self.ids, self.labels = (torch.randint(0, tokens, (rows, length)) for _ in range(2))
    self.cut = 1 + self.count // 2

  def stepper(self, module: Any, gradients: Callable[[], Any]) -> Callable[[], None]:
    """Gives a function that trains for one step."""
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def step() -> None:
      optimizer.zero_grad()
      gradients()
      optimizer.step()

    return step

  def single(self) -> Callable[[], None]:
    """Trains on one device."""
    module, number = nn.Sequential(*self.layers), self.micro_batches
    pairs = list(zip(self.ids.chunk(number), self.labels.chunk(number), strict=True))

    def gradients() -> None:
      for ids, labels in pairs:
        (loss_of(module(ids), labels) / number).backward()

    return self.stepper(module, gradients)

  def torchgpipe(self) -> Callable[[], None]:
    """Trains on two partitions of one process."""
    gpipe = importlib.import_module("torchgpipe").GPipe
    module = gpipe(
      nn.Sequential(*self.layers),
      balance=[self.cut, len(self.layers) - self.cut],
      devices=["cpu", "cpu"],
      chunks=self.micro_batches,
      checkpoint="always",
    )
    return self.stepper(
      module, lambda: loss_of(module(self.ids), self.labels).backward()
    )

  def pipelined(self, rank: int, schedule: str) -> Callable[[], None]:
    """Trains one of two partitions, each a process of its own."""
    pipelining = importlib.import_module("torch.distributed.pipelining")
    own = self.layers[: self.cut] if rank == 0 else self.layers[self.cut :]
    module = nn.Sequential(*own)
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    kinds = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    made = kinds[schedule](stage, n_microbatches=self.micro_batches, loss_fn=loss_of)

    def gradients() -> None:
      if rank == 0:
        made.step(self.ids)
      else:
        made.step(target=self.labels, losses=[])

    step = self.stepper(module, gradients)

    def together() -> None:
      step()
      torch.distributed.barrier()

    return together


def _report(step: Callable[[], None], steps: int) -> None:
  step()
  print(json.dumps(measure(step, steps)), flush=True)


def _one_of_two(rank: int, store: str, how: str, sizes: list[str], steps: int) -> None:
  """Is one of the two processes."""
  torch.set_num_threads(1)
  flags.FLAGS(["", f"--sizes={','.join(sizes)}"])
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2
  )
  step = Trained().pipelined(rank, how)
  if rank == 0:
    _report(step, steps)
  else:
    for _ in range(1 + steps):
      step()
  torch.distributed.destroy_process_group()


def main(argv: Sequence[str]) -> None:
  """Measures and prints one line of JSON."""
  if len(argv) > 1:
    sys.exit(f"error: unexpected arguments: {' '.join(argv[1:])}")
  torch.set_num_threads(1)
  how = _HOW.value
  if how in ("gpipe", "1f1b"):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
      torch.multiprocessing.spawn(
        _one_of_two, (f"{folder}/store", how, _SIZES.value, STEPS.value), nprocs=2
      )
  else:
    trained = Trained()
    _report(trained.single() if how == "single" else trained.torchgpipe(), STEPS.value)


if __name__ == "__main__":
  app.run(main)
