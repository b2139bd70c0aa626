"""Image operations in NumPy, float64, tap by tap: an oracle for layers and cells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Array = np.ndarray


def conv2d(x: Array, w: Array, strides=(1, 1), padding="SAME", dilation=1) -> Array:
  """Convolves [n, h, w, in] with [kh, kw, in, out]."""
  taps = _taps(x, w.shape[:2], strides, padding, dilation, fill=0.0)
  return sum(part @ w[i, j] for i, j, part in taps)


def depthwise(x: Array, w: Array, stride=1, dilation=1) -> Array:
  """Convolves each channel with its own filter: w [kh, kw, in, 1]."""
  taps = _taps(x, w.shape[:2], (stride, stride), "SAME", dilation, fill=0.0)
  return sum(part * w[i, j, :, 0] for i, j, part in taps)


def max_pool(x: Array, window: int, stride=1, padding="SAME") -> Array:
  """Takes the largest value inside the map."""
  shape, strides = (window, window), (stride, stride)
  taps = _taps(x, shape, strides, padding, 1, fill=-np.inf)
  return np.max([part for _, _, part in taps], axis=0)


def avg_pool(x: Array, window: int, stride=1, padding="SAME") -> Array:
  """Takes the mean of the cells inside the map."""
  shape, strides = (window, window), (stride, stride)
  taps = _taps(x, shape, strides, padding, 1, fill=np.nan)
  return np.nanmean([part for _, _, part in taps], axis=0)


def relu(x: Array) -> Array:
  return np.maximum(x, 0)


def batch_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
  """Normalizes by the moments of x over all but the last axis."""
  axes = tuple(range(x.ndim - 1))
  scale = gamma / np.sqrt(x.var(axes) + epsilon)
  return (x - x.mean(axes)) * scale + beta


def _taps(
  x: Array,
  window: tuple[int, ...],
  strides: tuple[int, int],
  padding: str,
  dilation: int,
  fill: float,
) -> Iterator[tuple[int, int, Array]]:
  """Gives, for each place in the window, the cells that it sees at all positions."""
  outs, pads = [], []
  for side, k, stride in zip(x.shape[1:3], window, strides, strict=True):
    reach = (k - 1) * dilation + 1
    out = -(-side // stride) if padding == "SAME" else (side - reach) // stride + 1
    missing = max(0, (out - 1) * stride + reach - side) if padding == "SAME" else 0
    outs.append(out)
    pads.append((missing // 2, missing - missing // 2))
  x = np.pad(x.astype(np.float64), ((0, 0), *pads, (0, 0)), constant_values=fill)
  for i in range(window[0]):
    for j in range(window[1]):
      rows = i * dilation + strides[0] * np.arange(outs[0])
      columns = j * dilation + strides[1] * np.arange(outs[1])
      yield i, j, x[:, rows][:, :, columns]
