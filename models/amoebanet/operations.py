"""The operations of AmoebaNet's cells: from a name to a layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from models.amoebanet.blocks import (
  ConvChain,
  FactorizedReduction,
  Identity,
  ProjectedPool,
  conv_params,
)
from tfpipe.layers.conv import SeparableConv2D
from tfpipe.layers.pooling import AvgPool, MaxPool
from tfpipe.params import InstantiableParams
from tfpipe.spelling import nearest_or_all

_POOL = re.compile(r"(max|avg)_pool_([23])x\2")
_SEPARABLE = re.compile(r"(dil_2_)?separable_([357])x\2_2")
# Filters of a bottleneck's kernels besides the 1×1 at both ends: (height, width).
_BOTTLENECKS = {"3x3": ((3, 3),), "1x7_7x1": ((1, 7), (7, 1))}


def operation(
  name: str, channels: int, filters: int, stride: int, dilation: int, norm: Any
) -> InstantiableParams:
  """Gives the layer of an operation.

  Args:
    name: as in the genotypes, e.g. `separable_3x3_2`.
    channels: of its input.
    filters: channels of its output.
    stride: 1 or 2.
    dilation: of the filters of a `dil_2_` operation. The name asks for 2; the code that
      was published with GPipe ignores it and takes 1.
    norm: Params of the batch norms.

  Raises:
    ValueError: there is no operation of this name.
  """
  if pool := _POOL.fullmatch(name):
    kind = MaxPool if pool[1] == "max" else AvgPool
    p = kind.Params().Set(window=int(pool[2]), stride=stride)
    if channels == filters:
      return p
    projection = pointwise(channels, filters, 1, norm)
    return ProjectedPool.Params().Set(pool=p, projection=projection)
  if separable := _SEPARABLE.fullmatch(name):
    side, rate = int(separable[2]), dilation if separable[1] else 1
    first = _separable(side, channels, filters).Set(stride=stride, dilation=rate)
    second = _separable(side, filters, filters).Set(dilation=rate)
    return _chain([first, second], norm)
  if name in _BOTTLENECKS:
    return _bottleneck(_BOTTLENECKS[name], channels, filters, stride, norm)
  if name == "none" and stride == 1 and channels == filters:
    return Identity.Params()
  if name in ("none", "1x1"):
    return pointwise(channels, filters, stride, norm)
  known = ["none", "1x1", *_BOTTLENECKS, "max_pool_3x3", "separable_3x3_2"]
  raise ValueError(f"unknown operation {name!r}{nearest_or_all(name, known)}")


def adapter(
  channels: int, filters: int, is_larger: bool, norm: Any
) -> InstantiableParams:
  """Gives the layer that brings a map to `filters` channels and half its size."""
  if is_larger:
    return FactorizedReduction.Params().Set(
      input_channels=channels, filters=filters, norm=norm
    )
  if channels != filters:
    return pointwise(channels, filters, 1, norm)
  return Identity.Params()


def pointwise(
  channels: int, filters: int, stride: int, norm: Any
) -> InstantiableParams:
  """Gives 1×1 conv → batch norm."""
  return _chain([conv_params((1, 1), channels, filters, (stride, stride))], norm)


def _bottleneck(
  windows: Sequence[tuple[int, int]],
  channels: int,
  filters: int,
  stride: int,
  norm: Any,
) -> InstantiableParams:
  """Gives 1×1 to filters/4, the windows, 1×1 to filters.

  A window has the stride along the axes where it is larger than 1.
  """
  narrow = filters // 4
  convs = [conv_params((1, 1), channels, narrow, (1, 1))]
  for height, width in windows:
    strides = (stride if height > 1 else 1, stride if width > 1 else 1)
    convs.append(conv_params((height, width), narrow, narrow, strides))
  convs.append(conv_params((1, 1), narrow, filters, (1, 1)))
  return _chain(convs, norm)


def _separable(side: int, channels: int, filters: int) -> InstantiableParams:
  return SeparableConv2D.Params().Set(filter_shape=(side, side, channels, filters))


def _chain(convs: list[InstantiableParams], norm: Any) -> InstantiableParams:
  return ConvChain.Params().Set(convs=convs, norm=norm)
