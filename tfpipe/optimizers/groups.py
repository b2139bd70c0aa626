"""Weights that are updated together: one call for those of a layer.

Layers of equal weights share the traced functions of their update, so that neither
tracing nor the graph of a step grows with what a layer holds, and hardly with layers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tfpipe.lazy import tf
from tfpipe.optimizers.state import static_shape
from tfpipe.packed import pack_handles, unpack, variants
from tfpipe.traced import Function, call, handle_specs, specs, trace

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
  """Weights of one layer on one device.

  Attributes:
    device: where they are, with all that belongs to them.
    names: their names, in the order of their sums.
    kind: what their functions depend on.
  """

  device: str
  names: tuple[str, ...]
  kind: Kind


def groups(
  replica: Replica, l2_names: Sequence[str], order: Iterable[str]
) -> list[Group]:
  """Groups the weights of a replica by device and by the first part of their names.

  Args:
    replica: whose weights.
    l2_names: of those with an L2 term.
    order: names of all of them, those of each group in its order.
  """
  found: dict[tuple[str, str], list[str]] = {}
  for name in order:
    device = replica.weights[name].device
    found.setdefault((device, name.partition("/")[0]), []).append(name)
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
  one: Callable[[Group, Sequence[tf.Tensor]], Sequence[tf.Tensor]],
  shared: Sequence[tf.Tensor],
  own: Mapping[Group, Sequence[tf.Tensor]],
  known: dict[tuple[Kind, ...], Function],
) -> list[tf.Tensor]:
  """Adds calls for groups of one device, as one call on the device in scope.

  Args:
    one: group, arguments → adds its call, which gives vectors, as many as the others.
    shared: first arguments of all.
    own: further arguments of each.
    known: functions that were traced for other devices, by the kinds of their groups.

  Returns:
    the vectors of all groups, one behind the other.
  """
  args = [*shared, *[tensor for tensors in own.values() for tensor in tensors]]
  ends = list(itertools.accumulate(map(len, own.values()), initial=len(shared)))

  def body(*args: tf.Tensor) -> list[tf.Tensor]:
    found = [
      one(group, [*args[: len(shared)], *args[start:end]])
      for group, start, end in zip(own, ends[:-1], ends[1:], strict=True)
    ]
    return [tf.concat(parts, axis=0) for parts in zip(*found, strict=True)]

  kinds = tuple(group.kind for group in own)
  if kinds not in known:
    known[kinds] = trace(body, specs(args))
  return call(known[kinds], args, changes=True)


def handles(variables: Sequence[tf.Variable], *, packed: bool) -> list[tf.Tensor]:
  """Gives what a shared function takes for variables of one device."""
  found = [variable.handle for variable in variables]
  # With one of them, TensorFlow asks for an order among its users only.
  return [*pack_handles(variables), found[0]] if packed else found


def specs_of_handles(count: int, *, packed: bool) -> list[tf.TensorSpec]:
  """Gives the specs of what `handles` gives for so many variables."""
  if packed:
    return [*variants(1), *handle_specs(1)]
  return handle_specs(count)


def opened(given: Sequence[tf.Tensor], count: int, *, packed: bool) -> list[tf.Tensor]:
  """Gives the handles of so many variables within a shared function."""
  return unpack(given[0], handle_specs(count)) if packed else list(given)
