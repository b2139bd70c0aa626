"""Gradient sums of layers as those of weights, of which several layers may use one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tfpipe.lazy import tf
from tfpipe.packed import PackedTensors, unpack_as_node
from tfpipe.pipeline.step_result import total


def by_weight(
  layers: Sequence[tuple[tuple[str, ...], tf.Tensor]],
  weights: Mapping[str, tf.Variable],
) -> PackedTensors:
  """Adds the contributions of all uses of a weight, in their order, on its device.

  Args:
    layers: names of weights, and their sums packed; a copy of a layer is one more.
    weights: variables by name.
  """
  uses = Counter(name for names, _ in layers for name in names)
  specs = {name: tf.TensorSpec(weights[name].shape) for name in uses}
  packs: dict[tuple[str, ...], tf.Tensor] = {}
  contributions: dict[str, list[tf.Tensor]] = {}
  for names, packed in layers:
    if all(uses[name] == 1 for name in names):
      packs[names] = packed
      continue
    with tf.device(packed.device):
      values = unpack_as_node(packed, [specs[name] for name in names])
    for name, value in zip(names, values, strict=True):
      contributions.setdefault(name, []).append(value)
  sums = {}
  for name, values in contributions.items():
    with tf.device(weights[name].device):
      sums[name] = total(values)
  return PackedTensors(packs, specs, sums)


def added(
  uses: Sequence[tuple[str, tf.Tensor]], homes: Mapping[str, str]
) -> dict[str, tf.Tensor]:
  """Does the same for sums that are not packed.

  Args:
    uses: name of a weight, and the sum of one of its uses.
    homes: name of each layer → its device.
  """
  contributions: dict[str, list[tf.Tensor]] = {}
  for name, value in uses:
    contributions.setdefault(name, []).append(value)
  sums = {}
  for name, values in contributions.items():
    with tf.device(homes[name.partition("/")[0]]):
      sums[name] = total(values)
  return sums
