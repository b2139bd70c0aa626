"""Nested inputs and outputs of cells: which leaves are tensors, which are constants.

A border may carry tuples, lists, dicts, NestedMaps, None and plain Python values beside
tensors. A `Structure` remembers everything but the tensors, so that a traced function
can take and give a flat list of tensors.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tfpipe.lazy import tf

_TENSOR = object()
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclasses.dataclass(frozen=True)
class Structure:
  """The shape of a nest: its constants in place, `_TENSOR` where a tensor goes."""

  skeleton: Any

  @staticmethod
  def split(nest: Any) -> tuple[Structure, list[tf.Tensor]]:
    """Separates a nest into its structure and its tensors, in `tf.nest` order.

    Raises:
      TypeError: a leaf is neither a tensor nor a plain value: it may hold tensors,
        whose gradients would be lost.
    """
    leaves = tf.nest.flatten(nest)
    for leaf in leaves:
      if not (_is_tensor(leaf) or _is_plain(leaf)):
        raise TypeError(
          f"{type(leaf).__name__} cannot cross the border of a layer: tensors, "
          "numbers, strings, NumPy arrays and None can, in tuples, lists and dicts; "
          "pass its parts"
        )
    skeleton = [_TENSOR if _is_tensor(leaf) else leaf for leaf in leaves]
    tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
    return Structure(tf.nest.pack_sequence_as(nest, skeleton)), tensors

  def key(self) -> Hashable:
    """Gives a key that is equal for equal structures only.

    Constants whose text may hide a difference (arrays, objects) are equal to none.
    """
    leaves = tf.nest.flatten(self.skeleton)
    if all(leaf is _TENSOR or type(leaf) in _PLAIN for leaf in leaves):
      return repr(self.skeleton)
    return object()

  def pack(self, tensors: Sequence[Any]) -> Any:
    """Puts tensors back in place."""
    rest = iter(tensors)
    leaves = [
      next(rest) if leaf is _TENSOR else leaf for leaf in tf.nest.flatten(self.skeleton)
    ]
    return tf.nest.pack_sequence_as(self.skeleton, leaves)


def is_differentiable(tensor: tf.Tensor) -> bool:
  """Says whether gradients flow to a tensor of this dtype."""
  return tensor.dtype.is_floating or tensor.dtype.is_complex


def static_shape(value: tf.Tensor | tf.TensorSpec | tf.Variable) -> tuple[int, ...]:
  """Gives the shape.

  Raises:
    ValueError: a dimension is not known.
  """
  if not value.shape.is_fully_defined():
    raise ValueError(f"{value!r}: every dimension must be known")
  return tuple(size for size in value.shape.as_list() if size is not None)


def _is_plain(leaf: Any) -> bool:
  if isinstance(leaf, np.ndarray):
    return leaf.dtype.kind in "biufcSU"
  return isinstance(leaf, (*_PLAIN, np.generic, enum.Enum, tf.DType, tf.TensorShape))


def _is_tensor(leaf: Any) -> bool:
  return isinstance(leaf, (tf.Tensor, tf.TensorSpec))
