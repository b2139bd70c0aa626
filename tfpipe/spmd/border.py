"""What stages hand on or keep, as vectors of one length for each dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tfpipe.lazy import tf
from tfpipe.spmd.layout import padded
from tfpipe.structure import static_shape

Vectors: TypeAlias = "dict[str, tf.Tensor]"
"""By dtype."""

_CARRIED = {
  "float32": "float32",
  "bfloat16": "bfloat16",
  "int32": "int32",
  "int64": "int64",
  "bool": "int32",
}
"""Dtypes that may cross a border, and what each crosses it as."""


class Border:
  """The tensors of each border, or stage, of whatever number and shapes.

  Args:
    borders: for each border what crosses it.
    text: says for a message what a tensor does there; `{}` stands for the number.

  Attributes:
    sizes: dtype → length of its vector: that of the longest.

  Raises:
    ValueError: a dtype cannot cross, or a dimension is not known.
  """

  def __init__(
    self,
    borders: Sequence[Sequence[tf.TensorSpec]],
    text: str = "crosses from stage {} to the next",
  ) -> None:
    self._borders = [list(specs) for specs in borders]
    self.sizes: dict[str, int] = {}
    for number, specs in enumerate(self._borders):
      own: dict[str, int] = {}
      for spec in specs:
        if spec.dtype.name not in _CARRIED:
          raise ValueError(
            f"a tensor of {spec.dtype.name} {text.format(number)}: where all devices "
            f"run one program, it must be one of {', '.join(_CARRIED)}"
          )
        dtype = _CARRIED[spec.dtype.name]
        own[dtype] = own.get(dtype, 0) + _size(spec)
      for dtype, size in own.items():
        self.sizes[dtype] = max(size, self.sizes.get(dtype, 1))

  def zeros(self) -> Vectors:
    """Gives what a stage that does nothing hands on."""
    return {dtype: tf.zeros([size], dtype) for dtype, size in self.sizes.items()}

  def pack(self, tensors: Sequence[tf.Tensor], border: int) -> Vectors:
    """Makes the vectors of the tensors that cross a border."""
    parts: dict[str, list[tf.Tensor]] = {dtype: [] for dtype in self.sizes}
    for tensor, spec in zip(tensors, self._borders[border], strict=True):
      dtype = _CARRIED[spec.dtype.name]
      parts[dtype].append(tf.reshape(tf.cast(tensor, dtype), [-1]))
    return {
      dtype: padded(own, self.sizes[dtype], tf.as_dtype(dtype))
      for dtype, own in parts.items()
    }

  def unpack(self, vectors: Mapping[str, tf.Tensor], border: int) -> list[tf.Tensor]:
    """Takes apart what crossed a border."""
    places = dict.fromkeys(self.sizes, 0)
    found = []
    for spec in self._borders[border]:
      dtype, size = _CARRIED[spec.dtype.name], _size(spec)
      part = vectors[dtype][places[dtype] : places[dtype] + size]
      places[dtype] += size
      found.append(tf.cast(tf.reshape(part, static_shape(spec)), spec.dtype))
    return found


def _size(spec: tf.TensorSpec) -> int:
  return math.prod(static_shape(spec))
