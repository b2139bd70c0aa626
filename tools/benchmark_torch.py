"""Runs some steps of the benchmark's networks in PyTorch; see `benchmark`.

  python -m tools.benchmark_torch --how=gpipe

`single`: one thread, the micro-batches one after the other. `torchgpipe`: partitions in
one process, recomputing. `gpipe`, `1f1b`: torch.distributed.pipelining, two processes
over gloo, keeping all activations. One thread for each partition.
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

from tools import benchmark_torch_amoebanet
from tools.benchmark_step import MEMORY, STEPS, measure
from tools.live_bytes import LiveBytes

HOWS = ("single", "torchgpipe", "gpipe", "1f1b")
_HOW = flags.DEFINE_enum("how", "single", HOWS, "How it is trained.")
_SIZES = flags.DEFINE_list(
  "sizes", "256,8,64,16,128,8", "Width, layers, length, rows, tokens, micro-batches."
)
_LENGTHS = flags.DEFINE_list("lengths", "5,5", "Layers of each partition.")
_AMOEBANET = flags.DEFINE_list(
  "amoebanet", [], "Instead: cells, filters, side of a picture, rows, micro-batches."
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
  return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


class Trained:
  """The network, its batch and its optimizer."""

  def __init__(self) -> None:
    self.lengths = [int(text) for text in _LENGTHS.value]
    if _AMOEBANET.value:
      cells, filters, side, rows, self.micro_batches = map(int, _AMOEBANET.value)
      self.layers = benchmark_torch_amoebanet.layers(cells, filters)
      self.inputs = torch.rand(rows, 1, side, side)
      self.labels = torch.randint(0, 10, (rows,))
      sample = self.inputs[: rows // self.micro_batches]
      self.lengths = _balance(self.layers, sample)
      return
    sizes = [int(text) for text in _SIZES.value]
    dim, count, length, rows, tokens, self.micro_batches = sizes
    self.layers = layers(dim, count, tokens)
    shape = (rows, length)
    self.inputs, self.labels = (torch.randint(0, tokens, shape) for _ in range(2))

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
    chunks = self.inputs.chunk(number), self.labels.chunk(number)
    pairs = list(zip(*chunks, strict=True))

    def gradients() -> None:
      for inputs, labels in pairs:
        (loss_of(module(inputs), labels) / number).backward()

    return self.stepper(module, gradients)

  def torchgpipe(self) -> Callable[[], None]:
    """Trains on partitions of one process."""
    gpipe = importlib.import_module("torchgpipe").GPipe
    module = gpipe(
      nn.Sequential(*self.layers),
      balance=self.lengths,
      devices=["cpu"] * len(self.lengths),
      chunks=self.micro_batches,
      checkpoint="always",
    )
    return self.stepper(
      module, lambda: loss_of(module(self.inputs), self.labels).backward()
    )

  def pipelined(self, rank: int, schedule: str) -> Callable[[], None]:
    """Trains one of two partitions, each a process of its own."""
    pipelining = importlib.import_module("torch.distributed.pipelining")
    cut = self.lengths[0]
    own = self.layers[:cut] if rank == 0 else self.layers[cut:]
    module = nn.Sequential(*own)
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    kinds = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    made = kinds[schedule](stage, n_microbatches=self.micro_batches, loss_fn=loss_of)

    def gradients() -> None:
      if rank == 0:
        made.step(self.inputs)
      else:
        made.step(target=self.labels, losses=[])

    step = self.stepper(module, gradients)

    def together() -> None:
      step()
      torch.distributed.barrier()

    return together


def _balance(layers: Sequence[Any], sample: Any) -> list[int]:
  """Cuts layers into two partitions by torchgpipe's own measurement."""
  balance = importlib.import_module("torchgpipe.balance")
  return balance.balance_by_time(2, nn.Sequential(*layers), sample, device="cpu")


def _report(step: Callable[[], None], steps: int, live: LiveBytes | None) -> None:
  step()
  found: dict[str, Any] = measure(step, steps)
  if live:
    found["live_bytes"] = live.most()
  print(json.dumps(found), flush=True)


def _one_of_two(rank: int, store: str, how: str, args: list[str], steps: int) -> None:
  """Is one of the two processes."""
  torch.set_num_threads(1)
  flags.FLAGS(["", *args])
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2
  )
  step = Trained().pipelined(rank, how)
  if rank == 0:
    _report(step, steps, None)
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
    args = [
      f"--sizes={','.join(_SIZES.value)}",
      f"--lengths={','.join(_LENGTHS.value)}",
    ]
    with tempfile.TemporaryDirectory() as folder:
      torch.multiprocessing.spawn(
        _one_of_two, (f"{folder}/store", how, args, STEPS.value), nprocs=2
      )
  else:
    live = LiveBytes() if MEMORY.value else None
    trained = Trained()
    step = trained.single() if how == "single" else trained.torchgpipe()
    _report(step, STEPS.value, live)


if __name__ == "__main__":
  app.run(main)
