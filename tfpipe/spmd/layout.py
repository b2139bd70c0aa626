"""What stages keep, as vectors of one length: a program for all knows but one shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfpipe.lazy import tf
from tfpipe.structure import static_shape

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the named float32 arrays of each stage lie in its vector.

  They lie one behind the other; behind the last are zeros. An array may be in several
  stages.

  Attributes:
    stages: for each stage name → shape, in order.
  """

  stages: tuple[Mapping[str, Shape], ...]

  @property
  def size(self) -> int:
    """Length of every stage's vector: that of the longest, at least 1."""
    return max(1, *(_total(shapes.values()) for shapes in self.stages))

  def shared(self) -> dict[str, Shape]:
    """Lists the arrays that several stages have."""
    counts: dict[str, int] = {}
    for shapes in self.stages:
      for name in shapes:
        counts[name] = counts.get(name, 0) + 1
    found = {name: shape for shapes in self.stages for name, shape in shapes.items()}
    return {name: shape for name, shape in found.items() if counts[name] > 1}

  def owned(self, stage: int) -> list[str]:
    """Lists the arrays of a stage that no stage before it has."""
    before = {name for shapes in self.stages[:stage] for name in shapes}
    return [name for name in self.stages[stage] if name not in before]

  def pack(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Makes the vectors of all stages: float32 [stages, size]."""
    found = np.zeros((len(self.stages), self.size), np.float32)
    for row, shapes in zip(found, self.stages, strict=True):
      start = 0
      for name, shape in shapes.items():
        end = start + math.prod(shape)
        row[start:end] = np.reshape(values[name], -1)
        start = end
    return found

  def unpack(self, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Takes the vectors of all stages, each [size], apart; of copies the first.

    Raises:
      ValueError: copies in several stages are not equal.
    """
    found: dict[str, np.ndarray] = {}
    for stage, (row, shapes) in enumerate(zip(vectors, self.stages, strict=True)):
      start = 0
      for name, shape in shapes.items():
        end = start + math.prod(shape)
        value = np.reshape(row[start:end], shape)
        if not np.array_equal(found.setdefault(name, value), value, equal_nan=True):
          raise ValueError(f"the copy of {name!r} in stage {stage} is another one")
        start = end
    return found

  def split(self, vector: tf.Tensor, stage: int) -> dict[str, tf.Tensor]:
    """Takes the vector of a stage apart, in the graph under construction."""
    shapes = self.stages[stage]
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = tf.split(vector, [*sizes, self.size - sum(sizes)])
    return {
      name: tf.reshape(part, shape)
      for (name, shape), part in zip(shapes.items(), parts, strict=False)
    }

  def join(self, values: Mapping[str, tf.Tensor], stage: int) -> tf.Tensor:
    """Makes the vector of a stage; what is not given is zero."""
    return padded(
      [
        tf.reshape(values[name], [-1])
        if name in values
        else tf.zeros([math.prod(shape)])
        for name, shape in self.stages[stage].items()
      ],
      self.size,
      tf.float32,
    )


def padded(parts: Sequence[tf.Tensor], size: int, dtype: tf.DType) -> tf.Tensor:
  """Joins vectors and fills with zeros up to a length."""
  rest = size - sum(math.prod(static_shape(part)) for part in parts)
  filled = [*parts, *([tf.zeros([rest], dtype)] if rest or not parts else [])]
  return tf.concat(filled, axis=0) if len(filled) > 1 else filled[0]


def _total(shapes: Iterable[Shape]) -> int:
  return sum(math.prod(shape) for shape in shapes)
