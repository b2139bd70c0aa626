"""Sizes of maps under a sliding window, for convolutions and pools."""

from __future__ import annotations

from typing import Any

from tfpipe.cost import ArraySpec

PADDINGS = ("SAME", "VALID")


def output_side(side: int, window: int, stride: int, padding: str) -> int:
  """Gives the positions of a window along one axis, 0 if it does not fit.

  SAME pads with ⌊pad/2⌋ cells before and the rest after, as TensorFlow does, so that
  the map only shrinks by the stride; VALID keeps the window inside the map.
  """
  if padding == "SAME":
    return -(-side // stride)
  return max(0, (side - window) // stride + 1)


def output_map(
  name: str,
  x: ArraySpec,
  window: tuple[int, int],
  stride: tuple[int, int],
  padding: str,
) -> tuple[int, int]:
  """Gives height and width of the map that a window makes of `x`.

  Raises:
    ValueError: `x` is not [batch, height, width, channels], or smaller than the window.
  """
  check_map(name, x)
  height, width = (
    output_side(*axis, padding)
    for axis in zip(x.shape[1:3], window, stride, strict=True)
  )
  if height == 0 or width == 0:
    raise ValueError(
      f"{name}: a window of {window} does not fit into the map of {x.shape[1:3]}; "
      "take a larger image or padding='SAME'"
    )
  return height, width


def check_map(name: str, x: ArraySpec, channels: int | None = None) -> None:
  """Refuses what is not [batch, height, width, channels].

  Raises:
    ValueError: the rank is not 4, or the last dimension is not `channels`.
  """
  if len(x.shape) != 4:
    raise ValueError(
      f"{name}: got shape {x.shape}, expected [batch, height, width, channels]"
    )
  if channels is not None and x.shape[3] != channels:
    raise ValueError(f"{name}: got {x.shape[3]} channels, expected {channels}")


def check_sizes(owner: object, params: Any, name: str, count: int) -> tuple[int, ...]:
  """Returns the tuple `params.name` if it holds `count` integers of at least 1.

  Raises:
    ValueError: it holds anything else.
  """
  value = params.Get(name)
  is_tuple = isinstance(value, tuple) and len(value) == count
  if not (is_tuple and all(type(size) is int and size >= 1 for size in value)):
    raise ValueError(
      f"{type(owner).__name__}.{name} = {value!r}: it must be a tuple of {count} "
      "integers of at least 1"
    )
  return value
