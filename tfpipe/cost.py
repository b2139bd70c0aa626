"""What a layer needs, as numbers: the record that every layer's `FPropMeta` returns.

Partition, schedule and plan see these records, never layers, so that nothing heavy is
imported to plan a run.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfpipe.spelling import nearest

__all__ = ["ArraySpec", "LayerCost", "flatten", "in_dtype", "total"]

_DTYPE_BYTES = {
  "bool": 1,
  "int8": 1,
  "uint8": 1,
  "int16": 2,
  "uint16": 2,
  "int32": 4,
  "uint32": 4,
  "int64": 8,
  "uint64": 8,
  "bfloat16": 2,
  "float16": 2,
  "float32": 4,
  "float64": 8,
  "complex64": 8,
  "complex128": 16,
}

# What may cross a border beside arrays, as it is.
_CONSTANTS = (bool, int, float, complex, str, bytes, enum.Enum)


@dataclass(frozen=True)
class ArraySpec:
  """Shape and dtype of one array, batch dimension included.

  Raises ValueError for a dimension that is not a whole number >= 0 and for a dtype
  without a fixed size.
  """

  shape: tuple[int, ...]
  dtype: str = "float32"

  def __post_init__(self) -> None:
    for axis, dim in enumerate(self.shape):
      if not isinstance(dim, int) or dim < 0:
        raise ValueError(
          f"shape {self.shape}: axis {axis} is {dim!r}, expected a whole number >= 0"
        )
    if self.dtype not in _DTYPE_BYTES:
      raise ValueError(
        f"dtype {self.dtype!r} is not one of {', '.join(_DTYPE_BYTES)}"
        f"{nearest(self.dtype, _DTYPE_BYTES)}"
      )

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.shape)

  @property
  def itemsize(self) -> int:
    """Bytes of an element."""
    return _DTYPE_BYTES[self.dtype]

  @property
  def bytes(self) -> int:
    """Bytes of the array."""
    return self.size * self.itemsize


@dataclass(frozen=True)
class LayerCost:
  """What one call of a layer needs.

  Attributes:
    name: path of the layer.
    flops: float operations of one forward, as TensorFlow's profiler counts them (two
      for a multiply-add).
    matmul_flops: the part of `flops` in matrix products and convolutions.
    param_count: number of weights.
    param_bytes: bytes of the weights.
    activation_bytes: what a training forward keeps for its backward, besides the
      weights and its own input.
    out_shapes: structure (tuple, list, dict, None) of ArraySpec that the layer returns,
      with its Python values, if any, in their places.

  Raises ValueError, naming the layer and the field, for numbers below 0 and for more
  matmul_flops than flops; TypeError for anything else in `out_shapes`.
  """

  name: str
  flops: int
  matmul_flops: int
  param_count: int
  param_bytes: int
  activation_bytes: int
  out_shapes: Any

  def __post_init__(self) -> None:
    for field in _SUMMED:
      value = getattr(self, field)
      if not isinstance(value, int) or value < 0:
        raise ValueError(
          f"{self.name}: {field} is {value!r}, expected a whole number >= 0"
        )
    if self.matmul_flops > self.flops:
      raise ValueError(
        f"{self.name}: matmul_flops {self.matmul_flops} exceed flops {self.flops}"
      )
    flatten(self.out_shapes)

  @property
  def border_bytes(self) -> int:
    """Bytes that cross to the next layer: all arrays of `out_shapes`."""
    return sum(spec.bytes for spec in flatten(self.out_shapes))


_SUMMED = ("flops", "matmul_flops", "param_count", "param_bytes", "activation_bytes")


def total(costs: Sequence[LayerCost], name: str = "total") -> LayerCost:
  """Returns the cost of consecutive layers run as one.

  The inputs of the inner layers, which a layer's own `activation_bytes` leaves out, are
  kept too: they are the borders between the layers and are added here.
  """
  if not costs:
    raise ValueError(f"{name}: no layers to add up")
  sums = {field: sum(getattr(cost, field) for cost in costs) for field in _SUMMED}
  sums["activation_bytes"] += sum(cost.border_bytes for cost in costs[:-1])
  return LayerCost(name=name, out_shapes=costs[-1].out_shapes, **sums)


def flatten(structure: Any, path: str = "out_shapes") -> list[ArraySpec]:
  """Lists the ArraySpecs of a structure: in order, dicts by sorted key.

  Args:
    structure: tuples, lists and dicts, nested, of ArraySpec and None; and of Python
      values, which cross a border without bytes. Such a value without any ArraySpec
      beside it is refused: then it is most likely a shape.
    path: how an error names the structure.

  Raises TypeError, naming the place, for anything else.
  """
  leaves = list(_leaves(structure, path))
  specs = [leaf for _, leaf in leaves if isinstance(leaf, ArraySpec)]
  legal = (ArraySpec, *_CONSTANTS) if specs else ArraySpec
  for where, leaf in leaves:
    if not isinstance(leaf, legal):
      raise TypeError(
        f"{where} is a {type(leaf).__name__}, expected ArraySpec, None, tuple, list or "
        "dict, or beside an ArraySpec a number, text or enum"
      )
  return specs


def _leaves(structure: Any, path: str) -> Iterator[tuple[str, Any]]:
  """Yields all of a structure but None that has nothing inside, with its place."""
  if isinstance(structure, dict):
    for key in sorted(structure):
      yield from _leaves(structure[key], f"{path}.{key}")
  elif isinstance(structure, (tuple, list)):
    for index, part in enumerate(structure):
      yield from _leaves(part, f"{path}[{index}]")
  elif structure is not None:
    yield path, structure


def in_dtype(structure: Any, dtype: str) -> Any:
  """Gives a border of layers that compute in a dtype.

  Args:
    structure: tuples, lists and dicts, nested, of ArraySpec, None and Python values.
    dtype: of all float32 arrays but single numbers, which stay as they are.
  """
  if isinstance(structure, ArraySpec):
    moves = structure.dtype == "float32" and structure.shape
    return ArraySpec(structure.shape, dtype) if moves else structure
  if isinstance(structure, dict):
    parts = {key: in_dtype(part, dtype) for key, part in structure.items()}
    return type(structure)(parts)
  if isinstance(structure, (tuple, list)):
    found = [in_dtype(part, dtype) for part in structure]
    # A named tuple takes its fields one by one.
    whole = hasattr(structure, "_fields")
    return type(structure)(*found) if whole else type(structure)(found)
  return structure
