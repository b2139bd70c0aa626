"""Sums of gradients gathered over several calls, for one update with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.optimizers.state import WEIGHT

if TYPE_CHECKING:
  from tfpipe.optimizers.replicas import Replica


def accumulate(
  state: Mapping[str, tf.Variable], sums: Mapping[str, tf.Tensor], weight: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
  """Adds sums and loss weight to what this replica gathered; returns the totals."""
  totals = {}
  for name, gradient in sums.items():
    total = state[f"accumulators/{name}"]
    with tf.device(total.device):
      total.assign_add(gradient)
      totals[name] = tf.identity(total)
  state[WEIGHT].assign_add(weight)
  return totals, tf.identity(state[WEIGHT])


def clear(replica: Replica) -> None:
  """Empties what a replica gathered, and its count of calls."""
  for entry, variable in replica.state.items():
    if entry.startswith(("accumulators/", "learner/accumulated_")):
      with tf.device(variable.device):
        variable.assign(tf.zeros_like(variable))
