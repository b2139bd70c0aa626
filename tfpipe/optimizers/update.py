"""One update of all weights, or none: from summed gradients to assigned variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.optimizers.gradients import HOST, half_squares, sum_of_halves
from tfpipe.optimizers.state import SKIPS, STEP, static_shape

if TYPE_CHECKING:
  from tfpipe.optimizers.base import Optimizer
  from tfpipe.optimizers.learning_rate import LearningRateSchedule
  from tfpipe.optimizers.replicas import Replica

  Tensors = Mapping[str, tf.Tensor]
  Metrics = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Update:
  """How gradients become an update; the fields are `Learner`'s Params."""

  optimizer: Optimizer
  schedule: LearningRateSchedule | None
  learning_rate: float
  clip_norm: float
  l2: float
  ema_decay: float
  ema_ramp: bool

  def run(
    self,
    replicas: Sequence[Replica],
    sums: Sequence[Tensors],
    weight: tf.Tensor,
    l2_names: Sequence[str],
  ) -> Metrics:
    """Updates every replica alike, unless weight or gradients forbid it.

    Args:
      replicas: the variables of each local replica.
      sums: for each of them the same gradient sums, by sorted names.
      weight: float32 scalar, total weight of the loss.
      l2_names: the weights with an L2 term, sorted.

    Returns:
      The metrics of `Learner.apply`.
    """
    first = replicas[0]
    with tf.device(HOST):
      usable = (weight > 0) & tf.math.is_finite(weight)
      divisor = tf.where(usable, weight, 1.0)
    gradients = [
      self._mean_gradients(replica, replica_sums, divisor, l2_names)
      for replica, replica_sums in zip(replicas, sums, strict=True)
    ]
    halves = half_squares(first.weights, gradients[0])
    l2_loss = self._l2_loss(first, l2_names)
    with tf.device(HOST):
      nonfinite = ~tf.math.is_finite(halves)
      applied = usable & ~tf.reduce_any(nonfinite)
      norm = tf.cast(tf.sqrt(2 * sum_of_halves(halves)), tf.float32)
      factor = self._clip_factor(norm)
      learning_rate = self._rate(first)
      skips = first.state[SKIPS] + 1
    skips = tf.cond(
      applied,
      lambda: self._assign(replicas, gradients, factor, learning_rate),
      lambda: skips,
    )
    for replica in replicas:
      replica.state[SKIPS].assign(skips)
    with tf.device(HOST):
      return {
        "applied": applied,
        "skipped": ~applied,
        "consecutive_skips": skips,
        "grad_norm": norm,
        "clip_factor": tf.where(applied, factor, 0.0),
        "learning_rate": learning_rate,
        "l2_loss": l2_loss,
        "weight": weight,
        "nonfinite": nonfinite,
      }

  def none(self, replica: Replica, l2_names: Sequence[str]) -> Metrics:
    """Returns the metrics of a call of `Learner.apply` in which no update is due."""
    with tf.device(HOST):
      return {
        "applied": tf.constant(False),
        "skipped": tf.constant(False),
        "consecutive_skips": tf.constant(0, tf.int64),
        "grad_norm": tf.constant(0.0),
        "clip_factor": tf.constant(0.0),
        "learning_rate": self._rate(replica),
        "l2_loss": self._l2_loss(replica, l2_names),
        "weight": tf.constant(0.0),
        "nonfinite": tf.zeros([len(replica.weights)], tf.bool),
      }

  def _rate(self, replica: Replica) -> tf.Tensor:
    """Returns the learning rate of the next update, a float32 scalar."""
    rate = tf.constant(self.learning_rate)
    if self.schedule is None:
      return rate
    return rate * self.schedule.value(replica.state[STEP])

  def _mean_gradients(
    self,
    replica: Replica,
    sums: Tensors,
    divisor: tf.Tensor,
    l2_names: Sequence[str],
  ) -> dict[str, tf.Tensor]:
    """Returns the gradients of the mean loss, with the L2 term."""
    gradients = {}
    for name, gradient_sum in sums.items():
      weight = replica.weights[name]
      with tf.device(weight.device):
        gradient = gradient_sum / divisor
        gradients[name] = gradient
        if name in l2_names:
          gradients[name] += self.l2 * weight
    return gradients

  def _l2_loss(self, replica: Replica, l2_names: Sequence[str]) -> tf.Tensor:
    if not l2_names:
      return tf.constant(0.0)
    weights = {name: replica.weights[name] for name in l2_names}
    total = sum_of_halves(half_squares(replica.weights, weights))
    return tf.cast(self.l2 * total, tf.float32)

  def _clip_factor(self, norm: tf.Tensor) -> tf.Tensor:
    if not self.clip_norm:
      return tf.ones_like(norm)
    return self.clip_norm / tf.maximum(norm, self.clip_norm)

  def _assign(
    self,
    replicas: Sequence[Replica],
    gradients: Sequence[Tensors],
    factor: tf.Tensor,
    learning_rate: tf.Tensor,
  ) -> tf.Tensor:
    """Assigns the update to all variables; returns 0, the consecutive skips."""
    with tf.device(HOST):
      step = replicas[0].state[STEP] + 1
      count = tf.cast(step, tf.float32)
      ema_rate = 1 - self._ema_decay(count)
    for replica, replica_gradients in zip(replicas, gradients, strict=True):
      for name, gradient in replica_gradients.items():
        with tf.device(replica.weights[name].device):
          if self.clip_norm:
            gradient *= factor
          new_weight = self._assign_weight(
            replica, name, gradient, learning_rate, count
          )
          if self.ema_decay:
            average = replica.state[f"ema/{name}"]
            average.assign_sub(ema_rate * (average - new_weight))
      replica.state[STEP].assign(step)
    return tf.zeros_like(step)

  def _assign_weight(
    self,
    replica: Replica,
    name: str,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    count: tf.Tensor,
  ) -> tf.Tensor:
    """Assigns a weight and its slots; returns the new value of the weight."""
    weight = replica.weights[name]
    slots = {
      slot: replica.state[f"slots/{name}/{slot}"]
      for slot in self.optimizer.slot_specs(static_shape(weight))
    }
    values = {slot: tf.identity(variable) for slot, variable in slots.items()}
    new_weight, new_values = self.optimizer.update(
      tf.identity(weight), gradient, values, learning_rate, count
    )
    weight.assign(new_weight)
    for slot, variable in slots.items():
      variable.assign(new_values[slot])
    return new_weight

  def _ema_decay(self, count: tf.Tensor) -> tf.Tensor:
    decay = tf.constant(self.ema_decay)
    if not self.ema_ramp:
      return decay
    return tf.minimum(decay, (1 + count) / (10 + count))
