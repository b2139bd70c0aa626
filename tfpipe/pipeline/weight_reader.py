"""Reads the weights of a stage, as one value.

They are read in the chunks in which they are packed: layers that are alike have chunks
that are alike, which share a function, so that a stage of many layers has few.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

from tfpipe.lazy import tf
from tfpipe.packed import (
  chunks,
  pack,
  pack_as_node,
  pack_handles,
  unpack,
  unpack_as_node,
  variants,
)
from tfpipe.structure import static_shape
from tfpipe.traced import Function, call, handle_specs, read, trace

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class WeightReader:
  """Reads variables where they are; stages whose weights are alike share a function.

  Args:
    packs: whether values travel packed.
  """

  def __init__(self, *, packs: bool) -> None:
    self._packs = packs
    self._functions: dict[_Shapes, Function] = {}

  def read(self, variables: Sequence[tf.Variable], device: str) -> list[tf.Tensor]:
    """Adds the reading of variables to the graph under construction.

    Args:
      variables: float32; a tied one may be on another device, or be there twice.
      device: where the stage is.

    Returns:
      their values on the device, packed as one if they travel so.
    """
    if not variables:
      return []
    if not self._packs:
      with tf.device(device):
        return [variable.read_value() for variable in variables]
    if all(variable.device.endswith(device) for variable in variables):
      return [self._read(variables, device)]
    values: dict[int, tf.Tensor] = {}
    for place in dict.fromkeys(variable.device for variable in variables):
      own = [variable for variable in variables if variable.device == place]
      packed = self._read(own, place)
      with tf.device(place):
        found = unpack_as_node(packed, [tf.TensorSpec(v.shape) for v in own])
      values |= zip(map(id, own), found, strict=True)
    with tf.device(device):
      return [pack_as_node([values[id(variable)] for variable in variables])]

  def _read(self, variables: Sequence[tf.Variable], device: str) -> tf.Tensor:
    shapes = tuple(static_shape(variable) for variable in variables)
    with tf.device(device):
      return self._call(shapes, pack_handles(variables)[0])

  def _call(self, shapes: _Shapes, packed: tf.Tensor) -> tf.Tensor:
    """Adds a call of the function for variables of these shapes."""
    if shapes not in self._functions:
      body = self._read_chunks if len(chunks(shapes)) > 1 else _read_all
      own = functools.partial(body, shapes)
      self._functions[shapes] = trace(own, variants(1))
    return call(self._functions[shapes], [packed])[0]

  def _read_chunks(self, shapes: _Shapes, packed: tf.Tensor) -> list[tf.Tensor]:
    parts = [tuple(chunk) for chunk in chunks(shapes)]
    found = unpack(packed, variants(len(parts)))
    return [pack([self._call(*pair) for pair in zip(parts, found, strict=True)])]


def _read_all(shapes: _Shapes, packed: tf.Tensor) -> list[tf.Tensor]:
  handles = unpack(packed, handle_specs(len(shapes)))
  return [pack([read(*pair) for pair in zip(handles, shapes, strict=True)])]
