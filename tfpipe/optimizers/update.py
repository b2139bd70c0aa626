"""One update of all weights, or none: from summed gradients to assigned variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.optimizers import loss_scale
from tfpipe.optimizers.gradients import HOST
from tfpipe.optimizers.groups import Group, Kind, by_device, call_all, groups, handles
from tfpipe.optimizers.state import SKIPS, STEP
from tfpipe.traced import Function, handle_specs, read, trace

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
  scale_steps: int
  _functions: dict[tuple[str, Kind], Function] = dataclasses.field(
    default_factory=dict, compare=False
  )

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
    found = groups(first, l2_names)
    halves = self._halves(found, first, sums[0], divisor)
    l2_loss = self._l2_loss(first, l2_names)
    with tf.device(HOST):
      nonfinite = ~tf.math.is_finite(halves)
      applied = usable & ~tf.reduce_any(nonfinite)
      norm = _norm(halves)
      factor = self._clip_factor(norm)
      learning_rate = self._rate(first)
      skips = first.state[SKIPS] + 1
    skips, update_norm, param_norm = tf.cond(
      applied,
      lambda: self._assign(
        replicas, sums, l2_names, (divisor, factor, learning_rate, measure)
      ),
      lambda: (skips, tf.zeros([]), tf.zeros([])),
    )
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
        "learning_rate": self._rate(replica),
        "l2_loss": self._l2_loss(replica, l2_names),
        "update_norm": tf.constant(0.0),
        "param_norm": tf.constant(0.0),
        "weight": tf.constant(0.0),
        "nonfinite": tf.zeros([len(replica.weights)], tf.bool),
        **loss_scale.read(replica),
      }

  def _rate(self, replica: Replica) -> tf.Tensor:
    """Returns the learning rate of the next update, a float32 scalar."""
    rate = tf.constant(self.learning_rate)
    if self.schedule is None:
      return rate
    return rate * self.schedule.value(replica.state[STEP])

  def _halves(
    self, found: Sequence[Group], replica: Replica, sums: Tensors, divisor: tf.Tensor
  ) -> tf.Tensor:
    """Returns `sum(x²)/2` of each mean gradient, in the order of the weights."""
    own = {
      group: [
        *[sums[name] for name in group.names],
        *handles([replica.weights[name] for name in group.names]),
      ]
      for group in found
    }
    return self._gathered("halves", own, [divisor], list(replica.weights))

  def _l2_loss(self, replica: Replica, l2_names: Sequence[str]) -> tf.Tensor:
    if not l2_names:
      return tf.constant(0.0)
    own = {
      group: handles([replica.weights[name] for name in group.names])
      for group in groups(replica, l2_names)
    }
    halves = self._gathered("l2_halves", own, [], list(replica.weights))
    with tf.device(HOST):
      return tf.cast(self.l2 * _sum(halves), tf.float32)

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
      functions = [self._function(name, group.kind) for group in found]
      with tf.device(device):
        vectors += call_all(functions, shared, [own[group] for group in found])
      names += [weight for group in found for weight in group.names]
    return _in_order(vectors, names, order)

  def _function(self, name: str, kind: Kind) -> Function:
    """Gives a function of groups of a kind; traced once."""
    makers = {
      "halves": self._make_halves,
      "l2_halves": self._make_l2_halves,
      "assign": self._make_assign,
    }
    key = (name, kind)
    if key not in self._functions:
      self._functions[key] = makers[name](kind)
    return self._functions[key]

  def _make_halves(self, kind: Kind) -> Function:
    """Makes the function (divisor, sums, weights) → sum(x²)/2 of the gradients."""
    count = len(kind.shapes)

    def body(divisor: tf.Tensor, *args: tf.Tensor) -> list[tf.Tensor]:
      halves = []
      for shape, l2, total, handle in zip(
        *kind, args[:count], args[count:], strict=True
      ):
        weight = read(handle, shape) if l2 else None
        halves.append(tf.nn.l2_loss(self._mean_gradient(total, divisor, weight)))
      return [tf.stack(halves)]

    return trace(body, [tf.TensorSpec([]), *_specs(kind), *handle_specs(count)])

  def _make_l2_halves(self, kind: Kind) -> Function:
    """Makes the function (weights) → sum(x²)/2 of those with an L2 term, else 0."""

    def body(*variables: tf.Tensor) -> list[tf.Tensor]:
      halves = [
        tf.nn.l2_loss(read(handle, shape)) if l2 else tf.zeros([])
        for shape, l2, handle in zip(*kind, variables, strict=True)
      ]
      return [tf.stack(halves)]

    return trace(body, handle_specs(len(kind.shapes)))

  def _mean_gradient(
    self, total: tf.Tensor, divisor: tf.Tensor, weight: tf.Tensor | None
  ) -> tf.Tensor:
    """Returns a gradient of the mean loss, with the L2 term of a weight."""
    gradient = total / divisor
    return gradient if weight is None else gradient + self.l2 * weight

  def _clip_factor(self, norm: tf.Tensor) -> tf.Tensor:
    if not self.clip_norm:
      return tf.ones_like(norm)
    return self.clip_norm / tf.maximum(norm, self.clip_norm)

  def _assign(
    self,
    replicas: Sequence[Replica],
    sums: Sequence[Tensors],
    l2_names: Sequence[str],
    scalars: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor],
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Assigns the update to all variables.

    Args:
      replicas: the variables of each local replica.
      sums: gradient sums of each of them.
      l2_names: the weights with an L2 term.
      scalars: divisor of the sums, factor of the mean gradients, learning rate, and
        whether norms are asked for.

    Returns:
      0, the consecutive skips; and the norms of what was added to all weights and of
      the new weights, 0 if not asked for.
    """
    with tf.device(HOST):
      step = replicas[0].state[STEP] + 1
      count = tf.cast(step, tf.float32)
      ema_rate = 1 - self._ema_decay(count)
    shared = [*scalars, count, ema_rate]
    halves: list[list[tf.Tensor]] = []
    names: list[str] = []
    for replica, replica_sums in zip(replicas, sums, strict=True):
      for device, found in by_device(groups(replica, l2_names)).items():
        functions = [self._function("assign", group.kind) for group in found]
        own = [
          [
            *[replica_sums[name] for name in group.names],
            *handles(self._variables(replica, group)),
          ]
          for group in found
        ]
        with tf.device(device):
          found_halves = call_all(functions, shared, own)
        if replica is replicas[0]:  # all replicas are alike
          halves.append(found_halves)
          names += [weight for group in found for weight in group.names]
      replica.state[STEP].assign(step)
    order = list(replicas[0].weights)
    moved, kept = (_in_order(v, names, order) for v in zip(*halves, strict=True))
    with tf.device(HOST):
      return tf.zeros_like(step), _norm(moved), _norm(kept)

  def _variables(self, replica: Replica, group: Group) -> list[tf.Variable]:
    """Lists each weight of a group, its slots, and its average if there is one."""
    variables = []
    for name, shape in zip(group.names, group.kind.shapes, strict=True):
      entries = [f"slots/{name}/{slot}" for slot in self.optimizer.slot_specs(shape)]
      entries += [f"ema/{name}"] if self.ema_decay else []
      variables += [replica.weights[name], *[replica.state[e] for e in entries]]
    return variables

  def _make_assign(self, kind: Kind) -> Function:
    """Makes the function (scalars, sums, variables) that updates the variables.

    It gives sum(x²)/2 of what was added to each weight, and of each new weight, or
    zeros: on CPUs that takes half as long as the update itself.
    """
    slots = [self.optimizer.slot_specs(shape) for shape in kind.shapes]
    sizes = [1 + len(own) + bool(self.ema_decay) for own in slots]

    def body(*args: tf.Tensor) -> list[tf.Tensor]:
      divisor, factor, rate, measure, count, ema_rate, *rest = args
      totals, variables = rest[: len(sizes)], iter(rest[len(sizes) :])
      changes: list[tuple[tf.Tensor, tf.Tensor]] = []
      for shape, l2, own, total in zip(*kind, slots, totals, strict=True):
        handle = next(variables)
        weight = read(handle, shape)
        gradient = self._mean_gradient(total, divisor, weight if l2 else None)
        if self.clip_norm:
          gradient *= factor
        places = {slot: next(variables) for slot in own}
        values = {slot: read(places[slot], own[slot].shape) for slot in own}
        new_weight, new_values = self.optimizer.update(
          weight, gradient, values, rate, count
        )
        _assign(handle, new_weight)
        changes.append((weight, new_weight))
        for slot, place in places.items():
          _assign(place, new_values[slot])
        if self.ema_decay:
          average = next(variables)
          move = ema_rate * (read(average, shape) - new_weight)
          tf.raw_ops.AssignSubVariableOp(resource=average, value=move)
      return _halves_of_changes(measure, changes)

    scalars = [tf.TensorSpec([])] * 5
    # What is int32 stays on the host, where a GPU's branches are decided.
    scalars.insert(3, tf.TensorSpec([], tf.int32))
    return trace(body, [*scalars, *_specs(kind), *handle_specs(sum(sizes))])

  def _ema_decay(self, count: tf.Tensor) -> tf.Tensor:
    decay = tf.constant(self.ema_decay)
    if not self.ema_ramp:
      return decay
    return tf.minimum(decay, (1 + count) / (10 + count))


def _assign(handle: tf.Tensor, value: tf.Tensor) -> None:
  tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _specs(kind: Kind) -> list[tf.TensorSpec]:
  return [tf.TensorSpec(shape) for shape in kind.shapes]


def _sum(halves: tf.Tensor) -> tf.Tensor:
  """Returns the sum of a float32 vector as a float64 scalar, which cannot overflow."""
  return tf.reduce_sum(tf.cast(halves, tf.float64))


def _halves_of_changes(
  measure: tf.Tensor, changes: Sequence[tuple[tf.Tensor, tf.Tensor]]
) -> list[tf.Tensor]:
  """Returns sum(x²)/2 of the differences and of the new values, or zeros.

  Args:
    measure: int32 scalar, whether not zeros.
    changes: old and new value of each weight.
  """

  def measured() -> list[tf.Tensor]:
    moved = [tf.nn.l2_loss(new - old) for old, new in changes]
    return [tf.stack(moved), tf.stack([tf.nn.l2_loss(new) for _, new in changes])]

  def not_measured() -> list[tf.Tensor]:
    return [tf.zeros([len(changes)])] * 2

  return tf.cond(measure > 0, measured, not_measured)


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
