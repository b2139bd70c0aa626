"""Replicas of `tf.distribute`: their variables, and sums over all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfpipe.lazy import tf


@dataclasses.dataclass(frozen=True)
class Replica:
  """Plain variables of one local replica; the only one without `tf.distribute`.

  Attributes:
    weights: the trained weights by name.
    state: everything else by the name of its checkpoint entry.
  """

  weights: Mapping[str, tf.Variable]
  state: Mapping[str, tf.Variable]


def current_strategy() -> tf.distribute.Strategy | None:
  """Returns the strategy in scope, None without one.

  Raises:
    ValueError: the strategy isn't one that is known to work.
  """
  if not tf.distribute.has_strategy():
    return None
  strategy = tf.distribute.get_strategy()
  supported = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
  )
  if not isinstance(strategy, supported):
    names = ", ".join(kind.__name__ for kind in supported)
    raise ValueError(
      f"a learner doesn't support {type(strategy).__name__}; it supports {names}"
    )
  return strategy


def local_replicas(
  weights: Mapping[str, tf.Variable], state: Mapping[str, tf.Variable]
) -> list[Replica]:
  """Splits variables made under the current strategy into those of each replica."""
  local = tf.distribute.get_strategy().experimental_local_results
  split_weights = {name: local(variable) for name, variable in weights.items()}
  split_state = {name: local(variable) for name, variable in state.items()}
  counts = {len(split) for split in (*split_weights.values(), *split_state.values())}
  if len(counts) != 1:
    raise ValueError("the weights must be created in the scope of the same strategy")
  return [
    Replica(
      {name: split[index] for name, split in split_weights.items()},
      {name: split[index] for name, split in split_state.items()},
    )
    for index in range(counts.pop())
  ]


def sum_over_replicas(
  strategy: tf.distribute.Strategy,
  tensors: Mapping[str, tf.Tensor],
  weight: tf.Tensor,
  variables: Mapping[str, tf.Variable],
  counter: tf.Variable,
) -> tuple[Sequence[Mapping[str, tf.Tensor]], tf.Tensor]:
  """Adds up tensors and loss weight of all replicas, in one exchange.

  Args:
    strategy: the strategy in scope, in cross-replica context.
    tensors: by name, one value for each replica.
    weight: scalar, one value for each replica.
    variables: by the same names, the variables whose replicas receive the sums.
    counter: the variable whose replicas receive the weight.

  Returns:
    For each local replica the sums by name; and the total weight.
  """
  if strategy.num_replicas_in_sync == 1:
    return [tensors], weight
  pairs = [(tensor, variables[name]) for name, tensor in tensors.items()]
  totals = strategy.extended.batch_reduce_to(
    tf.distribute.ReduceOp.SUM, [*pairs, (weight, counter)]
  )
  *sums, weights = [strategy.experimental_local_results(total) for total in totals]
  by_replica = [dict(zip(tensors, own, strict=True)) for own in zip(*sums, strict=True)]
  return by_replica, weights[0]
