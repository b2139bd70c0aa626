"""A factor of the loss that keeps the gradients of float16 within its range.

Best is a power of two: it rounds nothing that is within range. A gradient that is not
finite halves it and skips the update; after many updates in a row it is doubled
(Micikevicius et al., arXiv:1710.03740, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfpipe.checks import check_number
from tfpipe.lazy import tf
from tfpipe.optimizers.gradients import HOST

if TYPE_CHECKING:
  from tfpipe.optimizers.replicas import Replica
  from tfpipe.params import Params

SCALE = "learner/loss_scale"
UPDATES = "learner/loss_scale_updates"
"""Updates since the scale last changed."""

# Of the sum of the loss over a mini-batch, whose gradients are larger than the mean's.
FIRST = 1024.0
STEPS = 2000
LEAST, MOST = 1.0, 2.0**24


def check(owner: object, params: Params) -> float:
  """Gives the first scale: the field `loss_scale`, or its default if that is 0.

  Raises:
    TypeError, ValueError: it is no number, or out of range.
  """
  if params.Get("loss_scale") == 0:
    return FIRST
  return check_number(owner, params, "loss_scale", f"[{LEAST:.0f}, {MOST:.0f}]")


def create(first: float) -> dict[str, tf.Variable]:
  """Creates the scale and its counter, scalars on the host."""
  with tf.device(HOST):
    return {
      SCALE: tf.Variable(tf.constant(first, tf.float32), trainable=False, name=SCALE),
      UPDATES: tf.Variable(tf.zeros([], tf.int64), trainable=False, name=UPDATES),
    }


def read(replica: Replica) -> dict[str, tf.Tensor]:
  """Gives the metric `loss_scale`, if there is a scale."""
  if SCALE not in replica.state:
    return {}
  return {"loss_scale": replica.state[SCALE].read_value()}


def move(
  replicas: Sequence[Replica], applied: tf.Tensor, overflows: tf.Tensor, steps: int
) -> None:
  """Moves the scale of all replicas alike, after an update that was due.

  Args:
    replicas: the variables of each local replica.
    applied: whether the weights changed.
    overflows: whether they did not because of a gradient.
    steps: updates after which the scale doubles.
  """
  with tf.device(HOST):
    state = replicas[0].state
    scale = state[SCALE].read_value()
    updates = state[UPDATES] + tf.cast(applied, tf.int64)
    grows = updates >= steps
    moved = tf.where(grows, tf.minimum(2 * scale, MOST), scale)
    moved = tf.where(overflows, tf.maximum(scale / 2, LEAST), moved)
    updates = tf.where(grows | overflows, tf.zeros_like(updates), updates)
  for replica in replicas:
    replica.state[SCALE].assign(moved)
    replica.state[UPDATES].assign(updates)


def explains(metrics: Mapping[str, Any]) -> bool:
  """Says whether halving the scale may make gradients finite that are not.

  Args:
    metrics: of `Learner.apply`, as values. Without a finite weight it was the loss.
  """
  scale = float(metrics.get("loss_scale", LEAST))
  return scale > LEAST and math.isfinite(metrics["weight"])
