"""What a step hands to the update, and the sums over micro-batches it is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tfpipe.lazy import tf

Metrics: TypeAlias = "dict[str, tuple[tf.Tensor, tf.Tensor]]"


@dataclasses.dataclass(frozen=True)
class StepResult:
  """What the schedule computed for one mini-batch.

  Attributes:
    gradient_sums: per trainable weight, d(sum of losses)/d(weight) over the mini-batch.
    metrics: name → (sum, weight) over the mini-batch. `loss` is what is differentiated:
      the last cell's and those that layers add.
    moments: name of each batch norm → (mean, variance) pooled over micro-batches.
    micro_batch_losses: float32 [num_micro_batches], the loss sum of each.
    times: float64 [number of actions, 2], seconds at which each of `timed_actions`
      started and ended; None unless asked for.
  """

  gradient_sums: Mapping[str, tf.Tensor]
  metrics: Metrics
  moments: dict[str, tuple[tf.Tensor, tf.Tensor]]
  micro_batch_losses: tf.Tensor
  times: tf.Tensor | None


def total(values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Adds up tensors in their order."""
  found = values[0]
  for value in values[1:]:
    found = found + value
  return found


def pool(
  means: Sequence[tf.Tensor], variances: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
  """Gives mean and variance over the mini-batch from its equal micro-batches'."""
  all_means = tf.stack(means)
  mean = tf.reduce_mean(all_means, axis=0)
  spread = tf.math.squared_difference(all_means, mean)
  return mean, tf.reduce_mean(tf.stack(variances) + spread, axis=0)
