"""Weights that are updated together: one call for those of a layer.

Layers of equal weights share the traced functions of their update, so that neither
tracing nor the graph of a step grows with what a layer holds, and hardly with layers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tfpipe.lazy import tf
from tfpipe.optimizers.state import static_shape
from tfpipe.traced import Function, specs, trace

if TYPE_CHECKING:
  from tfpipe.optimizers.replicas import Replica


class Kind(NamedTuple):
  """What groups have in common that share their functions.

  Attributes:
    shapes: of the weights.
    l2: for each of them, whether it has an L2 term.
  """

  shapes: tuple[tuple[int, ...], ...]
  l2: tuple[bool, ...]


@dataclasses.dataclass(frozen=True)
class Group:
  """Weights of one layer on one device, in the order of their names.

  Attributes:
    device: where they are, with all that belongs to them.
    names: their names.
    kind: what their functions depend on.
  """

  device: str
  names: tuple[str, ...]
  kind: Kind


def groups(replica: Replica, l2_names: Sequence[str]) -> list[Group]:
  """Groups the weights of a replica by device and by the first part of their names."""
  found: dict[tuple[str, str], list[str]] = {}
  for name, weight in replica.weights.items():
    found.setdefault((weight.device, name.partition("/")[0]), []).append(name)
  return [
    Group(
      device,
      tuple(names),
      Kind(
        tuple(static_shape(replica.weights[name]) for name in names),
        tuple(name in l2_names for name in names),
      ),
    )
    for (device, _), names in found.items()
  ]


def by_device(found: Sequence[Group]) -> dict[str, list[Group]]:
  """Sorts groups by their device."""
  sorted_groups: dict[str, list[Group]] = {}
  for group in found:
    sorted_groups.setdefault(group.device, []).append(group)
  return sorted_groups


def call_all(
  functions: Sequence[Function],
  shared: Sequence[tf.Tensor],
  own: Sequence[Sequence[tf.Tensor]],
) -> list[tf.Tensor]:
  """Calls functions of groups of one device, as one call on the device in scope.

  Args:
    functions: of each group; each gives a list of vectors, as many as the others.
    shared: first arguments of all.
    own: further arguments of each.

  Returns:
    the vectors of all groups, one behind the other.
  """
  args = [*shared, *[tensor for tensors in own for tensor in tensors]]
  ends = list(itertools.accumulate(map(len, own), initial=len(shared)))

  def body(*args: tf.Tensor) -> list[tf.Tensor]:
    found = [
      function(*args[: len(shared)], *args[start:end])
      for function, start, end in zip(functions, ends[:-1], ends[1:], strict=True)
    ]
    return [tf.concat(parts, axis=0) for parts in zip(*found, strict=True)]

  return list(trace(body, specs(args))(*args))


def handles(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
  """Gives what a shared function takes for variables."""
  return [variable.handle for variable in variables]
