"""AmoebaNet in PyTorch, as torchgpipe's benchmarks have it; see `benchmark_torch`.

The network is that of `models.amoebanet`, layer by layer and weight by weight (Real et
al., AAAI 2019). torchgpipe's own variant takes means where the genotype says maxima,
has stem cells of twice the filters, and takes pictures of one size only.
"""

from __future__ import annotations

import importlib
from typing import Any

from models.amoebanet.genotype import GENOTYPES

torch: Any = importlib.import_module("torch")
nn = torch.nn

_BOTTLENECKS = {"3x3": ((3, 3),), "1x7_7x1": ((1, 7), (7, 1))}
_EPSILON = 1e-3


def _conv(
  channels: int, filters: int, window: tuple[int, int] = (1, 1), stride: int = 1
) -> list[Any]:
  """Gives ReLU → convolution → batch norm; the stride is along the window's axes."""
  strides = (
    stride if window == (1, 1) else tuple(stride if n > 1 else 1 for n in window)
  )
  padding = tuple(n // 2 for n in window)
  conv = nn.Conv2d(channels, filters, window, strides, padding, bias=False)
  return [nn.ReLU(), conv, nn.BatchNorm2d(filters, eps=_EPSILON)]


def _operation(name: str, channels: int, filters: int, stride: int) -> Any:
  """Gives the module of an operation by its name in the genotype."""
  if "pool" in name:
    side = int(name[-1])
    if name.startswith("max"):
      padding = side // 2 if side > 2 else 0
      pool = nn.MaxPool2d(side, stride, padding, ceil_mode=side == 2)
    else:
      pool = nn.AvgPool2d(side, stride, padding=side // 2, count_include_pad=False)
    if channels == filters:
      return pool
    return nn.Sequential(pool, *_conv(channels, filters)[1:])
  if name == "none" and stride == 1 and channels == filters:
    return nn.Identity()
  if name in ("none", "1x1"):
    return nn.Sequential(*_conv(channels, filters, stride=stride))
  narrow = filters // 4
  parts = _conv(channels, narrow)
  for window in _BOTTLENECKS[name]:
    parts += _conv(narrow, narrow, window, stride)
  return nn.Sequential(*parts, *_conv(narrow, filters))


class FactorizedReduction(nn.Module):
  """Halves a map: half of the filters see its even pixels, half its odd ones."""

  def __init__(self, channels: int, filters: int) -> None:
    super().__init__()
    self.even = nn.Conv2d(channels, filters // 2, 1, 2, bias=False)
    self.odd = nn.Conv2d(channels, filters // 2, 1, 2, bias=False)
    self.norm = nn.BatchNorm2d(filters, eps=_EPSILON)

  def forward(self, x: Any) -> Any:
    """Maps [rows, channels, side, side] to [rows, filters, ⌈side/2⌉, ⌈side/2⌉]."""
    x = torch.relu(x)
    shifted = nn.functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
    return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


class Cell(nn.Module):
  """Evaluates AmoebaNet-D's wiring of (output of the last cell, of the one before)."""

  def __init__(
    self, channels: int, before: int, filters: int, *, reduction: bool, larger: bool
  ) -> None:
    super().__init__()
    genotype = GENOTYPES["amoebanet_d"]
    self.wiring = genotype.reduction if reduction else genotype.normal
    self.reduce = nn.Sequential(*_conv(channels, filters))
    if larger:
      self.match: Any = FactorizedReduction(before, filters)
    elif before in (0, filters):
      self.match = nn.Identity()
    else:
      self.match = nn.Sequential(*_conv(before, filters))
    first = [filters, filters if before else channels]
    self.ops = nn.ModuleList(
      _operation(
        op.name,
        first[op.state] if op.state < 2 else filters,
        filters,
        2 if reduction and op.state < 2 else 1,
      )
      for pair in self.wiring.pairs
      for op in pair
    )
    self.channels = filters * len(self.wiring.concat)

  def forward(self, inputs: Any) -> tuple[Any, Any]:
    """Gives its output and the last cell's; the stem gives one tensor only."""
    x, before = inputs if isinstance(inputs, tuple) else (inputs, inputs)
    states = [self.reduce(x), self.match(before)]
    ops = iter(self.ops)
    for left, right in self.wiring.pairs:
      states.append(next(ops)(states[left.state]) + next(ops)(states[right.state]))
    return torch.cat([states[i] for i in self.wiring.concat], 1), x


class Classifier(nn.Module):
  """Takes the mean of each channel and gives logits."""

  def __init__(self, channels: int, classes: int) -> None:
    super().__init__()
    self.logits = nn.Linear(channels, classes)

  def forward(self, inputs: Any) -> Any:
    """Maps the pair of outputs to [rows, classes]."""
    return self.logits(torch.relu(inputs[0]).mean((2, 3)))


def layers(cells: int, filters: int, classes: int = 10, channels: int = 1) -> list[Any]:
  """Makes stem, cells and classifier of AmoebaNet-D (cells, filters)."""
  torch.manual_seed(0)
  stem = nn.Conv2d(channels, 32, 3, 2, bias=False)
  made = [nn.Sequential(stem, nn.BatchNorm2d(32, eps=_EPSILON))]
  plans = [(filters // 4, True), (filters // 2, True)]
  for cell in range(cells):
    if cell in (cells // 3, 2 * cells // 3):
      filters *= 2
      plans.append((filters, True))
    plans.append((filters, False))
  # Of the last cell and the one before: channels, and whether it halved its map.
  last, before, halved = 32, 0, False
  for width, reduction in plans:
    cell = Cell(last, before, width, reduction=reduction, larger=halved and before > 0)
    made.append(cell)
    last, before, halved = cell.channels, last, reduction
  return [*made, Classifier(last, classes)]
