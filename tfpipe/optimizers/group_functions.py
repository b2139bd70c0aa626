"""Functions of groups of weights: parts of an update, shared by groups of a kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfpipe.lazy import tf
from tfpipe.optimizers.groups import Kind, opened, specs_of_handles
from tfpipe.optimizers.rule import Rule, Scalars
from tfpipe.packed import unpack, variants
from tfpipe.traced import Function, read, trace


@dataclasses.dataclass(frozen=True)
class GroupFunctions:
  """Traces each function once for a kind of groups.

  Attributes:
    rule: how a weight learns.
    packed: whether functions take the sums, and the variables, of a group as one value.
  """

  rule: Rule
  packed: bool
  _made: dict[tuple[str, Kind], Function] = dataclasses.field(
    default_factory=dict, compare=False
  )

  def get(self, name: str, kind: Kind) -> Function:
    """Gives a function of groups of a kind: `halves`, `l2_halves`, `assign`, `leave`.

    `halves`: (divisor, sums, weights) → sum(x²)/2 of each mean gradient.
    `l2_halves`: (weights) → sum(x²)/2 of those with an L2 term, else 0.
    `assign`: (scalars, sums, variables) → updates the variables; gives sum(x²)/2 of
    what was added to each weight, and of each new weight.
    `leave`: the same arguments → changes nothing and gives zeros.
    """
    makers = {
      "halves": self._make_halves,
      "l2_halves": self._make_l2_halves,
      "assign": self._make_assign,
      "leave": self._make_leave,
    }
    key = (name, kind)
    if key not in self._made:
      self._made[key] = makers[name](kind)
    return self._made[key]

  def _make_halves(self, kind: Kind) -> Function:
    """Makes the function (divisor, sums, weights) → sum(x²)/2 of the gradients."""
    count = len(kind.shapes)

    def body(divisor: tf.Tensor, *args: tf.Tensor) -> list[tf.Tensor]:
      halves = []
      given = self._opened(kind, count, args)
      for shape, l2, total, handle in zip(*kind, *given, strict=True):
        weight = read(handle, shape) if l2 else None
        halves.append(tf.nn.l2_loss(self.rule.mean(total, divisor, weight)))
      return [tf.stack(halves)]

    return trace(body, [tf.TensorSpec([]), *self._specs(kind, count)])

  def _specs(self, kind: Kind, num_variables: int) -> list[tf.TensorSpec]:
    """Gives the specs of the sums of a group and of so many variables."""
    sums = [tf.TensorSpec(shape) for shape in kind.shapes]
    variables = specs_of_handles(num_variables, packed=self.packed)
    return [*(variants(1) if self.packed else sums), *variables]

  def _opened(
    self, kind: Kind, num_variables: int, args: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Gives the sums of a group and the handles of so many variables."""
    count = 1 if self.packed else len(kind.shapes)
    sums, variables = list(args[:count]), args[count:]
    if self.packed:
      sums = unpack(sums[0], [tf.TensorSpec(shape) for shape in kind.shapes])
    return sums, opened(variables, num_variables, packed=self.packed)

  def _make_l2_halves(self, kind: Kind) -> Function:
    """Makes the function (weights) → sum(x²)/2 of those with an L2 term, else 0."""
    count = len(kind.shapes)

    def body(*variables: tf.Tensor) -> list[tf.Tensor]:
      handles = opened(variables, count, packed=self.packed)
      halves = [
        tf.nn.l2_loss(read(handle, shape)) if l2 else tf.zeros([])
        for shape, l2, handle in zip(*kind, handles, strict=True)
      ]
      return [tf.stack(halves)]

    return trace(body, specs_of_handles(count, packed=self.packed))

  def _make_assign(self, kind: Kind) -> Function:
    """Makes the function (scalars, sums, variables) that updates the variables.

    It gives sum(x²)/2 of what was added to each weight, and of each new weight, or
    zeros: on CPUs that takes half as long as the update itself.
    """
    slots = [self.rule.optimizer.slot_specs(shape) for shape in kind.shapes]
    number = self._num_variables(kind)

    def body(*args: tf.Tensor) -> list[tf.Tensor]:
      divisor, factor, rate, measure, count, ema_rate, *rest = args
      scalars = Scalars(divisor, factor, rate, count, ema_rate)
      totals, handles = self._opened(kind, number, rest)
      variables = iter(handles)
      changes: list[tuple[tf.Tensor, tf.Tensor]] = []
      for shape, l2, own, total in zip(*kind, slots, totals, strict=True):
        handle = next(variables)
        weight = read(handle, shape)
        places = {slot: next(variables) for slot in own}
        values = {slot: read(places[slot], own[slot].shape) for slot in own}
        new_weight, new_values = self.rule.new(weight, total, values, scalars, l2=l2)
        _assign(handle, new_weight)
        changes.append((weight, new_weight))
        for slot, place in places.items():
          _assign(place, new_values[slot])
        if self.rule.ema_decay:
          average = next(variables)
          move = self.rule.move(read(average, shape), new_weight, scalars)
          tf.raw_ops.AssignSubVariableOp(resource=average, value=move)
      return _halves_of_changes(measure, changes)

    return trace(body, self._assign_specs(kind))

  def _make_leave(self, kind: Kind) -> Function:
    """Makes the function that stands for `_make_assign`'s and changes nothing."""

    def body(*args: tf.Tensor) -> list[tf.Tensor]:
      return [tf.zeros([len(kind.shapes)])] * 2

    return trace(body, self._assign_specs(kind))

  def _num_variables(self, kind: Kind) -> int:
    """Counts the weights of a group, their slots and averages."""
    slots = [self.rule.optimizer.slot_specs(shape) for shape in kind.shapes]
    return sum(1 + len(own) + bool(self.rule.ema_decay) for own in slots)

  def _assign_specs(self, kind: Kind) -> list[tf.TensorSpec]:
    scalars = [tf.TensorSpec([])] * 5
    # What is int32 stays on the host, where a GPU's branches are decided.
    scalars.insert(3, tf.TensorSpec([], tf.int32))
    return [*scalars, *self._specs(kind, self._num_variables(kind))]


def _assign(handle: tf.Tensor, value: tf.Tensor) -> None:
  tf.raw_ops.AssignVariableOp(resource=handle, value=value)


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
