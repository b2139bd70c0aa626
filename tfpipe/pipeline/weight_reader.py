"""Reads the weights of a stage, as one value."""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.lazy import tf
from tfpipe.packed import pack, pack_as_node, pack_handles, unpack, unpack_as_node
from tfpipe.structure import static_shape
from tfpipe.traced import Function, call, handle_specs, read, trace


class WeightReader:
  """Reads variables where they are; stages whose weights are alike share a function."""

  def __init__(self) -> None:
    self._functions: dict[tuple[tuple[int, ...], ...], Function] = {}

  def read(self, variables: Sequence[tf.Variable], device: str) -> tf.Tensor:
    """Adds the reading of variables to the graph under construction.

    Args:
      variables: float32; a tied one may be on another device, or be there twice.
      device: where the stage is.

    Returns:
      their values, packed, on the device.
    """
    if all(variable.device.endswith(device) for variable in variables):
      return self._read(variables, device)
    values: dict[int, tf.Tensor] = {}
    for place in dict.fromkeys(variable.device for variable in variables):
      own = [variable for variable in variables if variable.device == place]
      packed = self._read(own, place)
      with tf.device(place):
        found = unpack_as_node(packed, [tf.TensorSpec(v.shape) for v in own])
      values |= zip(map(id, own), found, strict=True)
    with tf.device(device):
      return pack_as_node([values[id(variable)] for variable in variables])

  def _read(self, variables: Sequence[tf.Variable], device: str) -> tf.Tensor:
    shapes = tuple(static_shape(variable) for variable in variables)
    if shapes not in self._functions:
      self._functions[shapes] = _reader(shapes)
    with tf.device(device):
      return call(self._functions[shapes], pack_handles(variables))[0]


def _reader(shapes: tuple[tuple[int, ...], ...]) -> Function:
  """Makes the function that reads float32 variables of these shapes."""

  def body(packed: tf.Tensor) -> list[tf.Tensor]:
    handles = unpack(packed, handle_specs(len(shapes)))
    return [pack([read(*pair) for pair in zip(handles, shapes, strict=True)])]

  return trace(body, [tf.TensorSpec([], tf.variant)])
