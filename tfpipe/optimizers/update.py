"""One update of all weights, or none: from summed gradients to assigned variables."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.optimizers import loss_scale
from tfpipe.optimizers.gradients import HOST
from tfpipe.optimizers.group_functions import GroupFunctions
from tfpipe.optimizers.groups import (
  Group,
  Kind,
  by_device,
  call_all,
  groups,
  handles,
)
from tfpipe.optimizers.state import SKIPS, STEP
from tfpipe.packed import PackedTensors
from tfpipe.traced import Function, call, call_one_of

if TYPE_CHECKING:
  from tfpipe.optimizers.learning_rate import LearningRateSchedule
  from tfpipe.optimizers.replicas import Replica
  from tfpipe.optimizers.rule import Rule

  Tensors = Mapping[str, tf.Tensor]
  Metrics = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Update:
  """How gradients become an update; the fields are `Learner`'s Params.

  Attributes:
    rule: how each weight learns.
    packed: whether functions take the sums, and the variables, of a layer as one value.
  """

  rule: Rule
  schedule: LearningRateSchedule | None
  learning_rate: float
  ema_ramp: bool
  scale_steps: int
  packed: bool

  @functools.cached_property
  def _functions(self) -> GroupFunctions:
    return GroupFunctions(self.rule, self.packed)

  @functools.cached_property
  def _by_kinds(self) -> dict[str, dict[tuple[Kind, ...], Function]]:
    return collections.defaultdict(dict)

  def run(
    self,
    replicas: Sequence[Replica],
    sums: Sequence[Tensors],
    weight: tf.Tensor,
    l2_names: Sequence[str],
    measure: tf.Tensor,
  ) -> Metrics:
    """Updates every replica alike, unless weight or gradients forbid it.

    Args:
      replicas: the variables of each local replica.
      sums: for each of them the same gradient sums, by sorted names.
      weight: float32 scalar, total weight of the loss.
      l2_names: the weights with an L2 term, sorted.
      measure: int32 scalar, whether norms of update and weights are asked for.

    Returns:
      The metrics of `Learner.apply`.
    """
    first = replicas[0]
    with tf.device(HOST):
      usable = (weight > 0) & tf.math.is_finite(weight)
      divisor = tf.where(usable, weight, 1.0)
      scale = loss_scale.read(first)
      divisor = divisor * scale["loss_scale"] if scale else divisor
    if self.packed:
      sums = [_packable(own) for own in sums]
    halves = self._halves(first, sums[0], l2_names, divisor)
    l2_loss = self._l2_loss(first, l2_names)
    with tf.device(HOST):
      nonfinite = ~tf.math.is_finite(halves)
      # Packed variables are no arguments that TensorFlow would order calls by: what
      # changes them has to wait for the loss term that reads them.
      with tf.control_dependencies([l2_loss]):
        applied = usable & ~tf.reduce_any(nonfinite)
      norm = _norm(halves)
      factor = self.clip_factor(norm)
      learning_rate = self.rate(first.state[STEP])
      skips = first.state[SKIPS] + 1
      skips = tf.where(applied, tf.zeros_like(skips), skips)
    scalars = (divisor, factor, learning_rate, measure)
    update_norm, param_norm = self._assign(replicas, sums, l2_names, applied, scalars)
    for replica in replicas:
      replica.state[SKIPS].assign(skips)
    if scale:
      overflows = usable & tf.logical_not(applied)
      loss_scale.move(replicas, applied, overflows, self.scale_steps)
    with tf.device(HOST):
      return {
        "applied": applied,
        "skipped": ~applied,
        "consecutive_skips": skips,
        "grad_norm": norm,
        "clip_factor": tf.where(applied, factor, 0.0),
        "learning_rate": learning_rate,
        "l2_loss": l2_loss,
        "update_norm": update_norm,
        "param_norm": param_norm,
        "weight": weight,
        "nonfinite": nonfinite,
        **scale,
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
        "learning_rate": self.rate(replica.state[STEP]),
        "l2_loss": self._l2_loss(replica, l2_names),
        "update_norm": tf.constant(0.0),
        "param_norm": tf.constant(0.0),
        "weight": tf.constant(0.0),
        "nonfinite": tf.zeros([len(replica.weights)], tf.bool),
        **loss_scale.read(replica),
      }

  def rate(self, done: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns the learning rate after so many updates, a float32 scalar."""
    rate = tf.constant(self.learning_rate)
    if self.schedule is None:
      return rate
    return rate * self.schedule.value(done)

  def _halves(
    self,
    replica: Replica,
    sums: Tensors,
    l2_names: Sequence[str],
    divisor: tf.Tensor,
  ) -> tf.Tensor:
    """Returns `sum(x²)/2` of each mean gradient, in the order of the weights."""
    own = {
      group: [
        *_sums_of(group, sums),
        *self._handles([replica.weights[name] for name in group.names]),
      ]
      for group in groups(replica, l2_names, sums)
    }
    return self._gathered("halves", own, [divisor], list(replica.weights))

  def _handles(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    return handles(variables, packed=self.packed)

  def _l2_loss(self, replica: Replica, l2_names: Sequence[str]) -> tf.Tensor:
    if not l2_names:
      return tf.constant(0.0)
    own = {
      group: self._handles([replica.weights[name] for name in group.names])
      for group in groups(replica, l2_names, replica.weights)
    }
    halves = self._gathered("l2_halves", own, [], list(replica.weights))
    with tf.device(HOST):
      return tf.cast(self.rule.l2 * _sum(halves), tf.float32)

  def _gathered(
    self,
    name: str,
    own: Mapping[Group, Sequence[tf.Tensor]],
    shared: Sequence[tf.Tensor],
    order: Sequence[str],
  ) -> tf.Tensor:
    """Calls a function of each group; returns its value for each weight, in order.

    The values of a device travel together; neither they nor their order depend on which
    weights share a device.
    """
    vectors, names = [], []
    for device, found in by_device(list(own)).items():
      with tf.device(device):
        vectors += call_all(
          lambda group, args: call(self._functions.get(name, group.kind), args),
          shared,
          {group: own[group] for group in found},
          self._by_kinds[name],
        )
      names += [weight for group in found for weight in group.names]
    return _in_order(vectors, names, order)

  def clip_factor(self, norm: tf.Tensor) -> tf.Tensor:
    """Returns what gradients of this norm are multiplied by."""
    if not self.rule.clip_norm:
      return tf.ones_like(norm)
    return self.rule.clip_norm / tf.maximum(norm, self.rule.clip_norm)

  def _assign(
    self,
    replicas: Sequence[Replica],
    sums: Sequence[Tensors],
    l2_names: Sequence[str],
    applied: tf.Tensor,
    scalars: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Assigns the update to all variables, or changes nothing.

    Args:
      replicas: the variables of each local replica.
      sums: gradient sums of each of them.
      l2_names: the weights with an L2 term.
      applied: bool, whether to assign it.
      scalars: divisor of the sums, factor of the mean gradients, learning rate, and
        whether norms are asked for.

    Returns:
      the norms of what was added to all weights and of the new weights, 0 if not asked
      for.
    """
    with tf.device(HOST):
      done = replicas[0].state[STEP].read_value()
      following = done + 1
      count = tf.cast(following, tf.float32)
      step = tf.where(applied, following, done)
      ema_rate = 1 - self.decay(count)
    shared = [*scalars, count, ema_rate]
    halves: list[list[tf.Tensor]] = []
    names: list[str] = []
    for replica, replica_sums in zip(replicas, sums, strict=True):
      for device, found in by_device(groups(replica, l2_names, replica_sums)).items():
        own = {
          group: [
            *_sums_of(group, replica_sums),
            *self._handles(self._variables(replica, group)),
          ]
          for group in found
        }
        with tf.device(device):
          known = self._by_kinds["assign"]
          changes = call_all(self._assign_group, [applied, *shared], own, known)
        if replica is replicas[0]:  # all replicas are alike
          halves.append(changes)
          names += [weight for group in found for weight in group.names]
      replica.state[STEP].assign(step)
    order = list(replicas[0].weights)
    moved, kept = (_in_order(v, names, order) for v in zip(*halves, strict=True))
    with tf.device(HOST):
      return _norm(moved), _norm(kept)

  def _assign_group(self, group: Group, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Assigns the update of a group if the first argument says so."""
    applied, *rest = args
    assign, leave = (self._functions.get(n, group.kind) for n in ("assign", "leave"))
    return call_one_of(applied, assign, leave, rest)

  def _variables(self, replica: Replica, group: Group) -> list[tf.Variable]:
    """Lists each weight of a group, its slots, and its average if there is one."""
    variables = []
    for name, shape in zip(group.names, group.kind.shapes, strict=True):
      entries = [
        f"slots/{name}/{slot}" for slot in self.rule.optimizer.slot_specs(shape)
      ]
      entries += [f"ema/{name}"] if self.rule.ema_decay else []
      variables += [replica.weights[name], *[replica.state[e] for e in entries]]
    return variables

  def decay(self, count: tf.Tensor) -> tf.Tensor:
    """Returns the decay of the averages in an update, counted from 1."""
    decay = tf.constant(self.rule.ema_decay)
    if not self.ema_ramp:
      return decay
    return tf.minimum(decay, (1 + count) / (10 + count))


def _packable(sums: Tensors) -> PackedTensors:
  return sums if isinstance(sums, PackedTensors) else PackedTensors({}, {}, sums)


def _sums_of(group: Group, sums: Tensors) -> list[tf.Tensor]:
  """Returns what a shared function takes for the gradient sums of a group."""
  if isinstance(sums, PackedTensors):
    with tf.device(group.device):
      return [sums.packed(group.names)]
  return [sums[name] for name in group.names]


def _sum(halves: tf.Tensor) -> tf.Tensor:
  """Returns the sum of a float32 vector as a float64 scalar, which cannot overflow."""
  return tf.reduce_sum(tf.cast(halves, tf.float64))


def _norm(halves: tf.Tensor) -> tf.Tensor:
  """Returns the float32 norm of all values whose `sum(x²)/2` a vector holds."""
  return tf.cast(tf.sqrt(2 * _sum(halves)), tf.float32)


def _in_order(
  vectors: Sequence[tf.Tensor], names: Sequence[str], order: Sequence[str]
) -> tf.Tensor:
  """Brings values of weights, given in the order of `names`, into another order."""
  places = {name: place for place, name in enumerate(names)}
  with tf.device(HOST):
    return tf.gather(tf.concat(vectors, axis=0), [places[name] for name in order])
