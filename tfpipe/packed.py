"""Many tensors that go the same way as one.

One by one, the hundreds of weights and kept activations of a stage would make the graph
of a step as large as the network, for every action. So they are packed into one value,
a variant that refers to them: nothing is copied. It stays on its device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from tfpipe.lazy import tf
from tfpipe.traced import Function, call, specs, trace

_T = TypeVar("_T")
_MOST = 16
# TensorFlow notes the types of all tensors of a value for each of them, and again for
# each use: of hundreds at once, that takes seconds.


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Makes one value of some tensors."""
  parts = list(tensors)
  while len(parts) > _MOST:
    parts = [_pack(chunk) for chunk in chunks(parts)]
  return _pack(parts)


def chunks(values: Sequence[_T]) -> list[Sequence[_T]]:
  """Gives those of some tensors that are packed together, before these are packed."""
  return [values[i : i + _MOST] for i in range(0, len(values), _MOST)]


def unpack(packed: tf.Tensor, own: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
  """Gives the tensors of which a value was made, of these shapes and dtypes."""
  levels = [list(own)]
  while len(levels[-1]) > _MOST:
    levels.append(variants(-(-len(levels[-1]) // _MOST)))
  parts = [packed]
  for level in levels[::-1]:
    pairs = zip(parts, chunks(level), strict=True)
    parts = [tensor for part, chunk in pairs for tensor in _unpack(part, chunk)]
  return parts


def pack_as_node(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Like `pack`, by one node, however many tensors there are."""
  if len(tensors) <= _MOST:
    return _pack(tensors)
  return call(_packer(tuple(specs(tensors))), tensors)[0]


def unpack_as_node(packed: tf.Tensor, own: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
  """Like `unpack`, by one node, however many tensors there are."""
  if len(own) <= _MOST:
    return _unpack(packed, own)
  return call(_unpacker(tuple(own)), [packed])


class PackedTensors(Mapping[str, "tf.Tensor"]):
  """Tensors by name, some of them packed; those that are asked for are unpacked.

  Args:
    packs: names of those packed together, in order → the value.
    specs: name → shape and dtype of each of these.
    others: name → tensor that is not packed.
  """

  def __init__(
    self,
    packs: Mapping[tuple[str, ...], tf.Tensor],
    specs: Mapping[str, tf.TensorSpec],
    others: Mapping[str, tf.Tensor],
  ) -> None:
    self._packs = dict(packs)
    self._specs = specs
    self._tensors = dict(others)
    self._whole = {name: names for names in packs for name in names}
    self._names = dict.fromkeys([*self._whole, *others])

  def __getitem__(self, name: str) -> tf.Tensor:
    if name not in self._tensors:
      names = self._whole[name]
      value = self._packs[names]
      with tf.device(value.device):
        found = unpack_as_node(value, [self._specs[own] for own in names])
      self._tensors |= zip(names, found, strict=True)
    return self._tensors[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._names)

  def __len__(self) -> int:
    return len(self._names)

  def packed(self, names: tuple[str, ...]) -> tf.Tensor:
    """Gives some of them as one value, packed now on the device in scope if need be."""
    if names not in self._packs:
      self._packs[names] = pack_as_node([self[name] for name in names])
    return self._packs[names]


def variants(count: int) -> list[tf.TensorSpec]:
  """Gives what so many packed values are like."""
  return [tf.TensorSpec([], tf.variant)] * count


def pack_handles(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
  """Gives the handles of variables of one device as one value, made here and now.

  A step would have as many arguments as there are variables, each with a node of its
  own. Code that is compiled as a whole knows no such values.
  """
  with tf.init_scope(), tf.device(variables[0].device):
    return [pack([variable.handle for variable in variables])]


@functools.lru_cache(maxsize=128)
def _packer(own: tuple[tf.TensorSpec, ...]) -> Function:
  with tf.init_scope():  # kept beyond the graph under construction
    return trace(lambda *tensors: [pack(tensors)], own)


@functools.lru_cache(maxsize=128)
def _unpacker(own: tuple[tf.TensorSpec, ...]) -> Function:
  with tf.init_scope():
    return trace(lambda packed: unpack(packed, own), variants(1))


def _pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  return tf.raw_ops.OptionalFromValue(components=tensors)


def _unpack(packed: tf.Tensor, own: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
  return tf.raw_ops.OptionalGetValue(
    optional=packed,
    output_types=[spec.dtype for spec in own],
    output_shapes=[spec.shape for spec in own],
  )
