"""The update of a learner, on the vectors of a stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np

from tfpipe.lazy import tf
from tfpipe.optimizers.learner import Learner
from tfpipe.optimizers.rule import Scalars
from tfpipe.optimizers.state import CALLS, SKIPS, STEP, WEIGHT
from tfpipe.spmd.layout import Layout

Report: TypeAlias = "dict[str, tf.Tensor]"
State: TypeAlias = "Mapping[str, tf.Tensor]"
Add: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"


class FlatUpdate:
  """One synchronous update of all stages, or none.

  Each stage updates its own weights by the learner's rule; sums over stages tell
  whether the gradients are finite, and their norm.

  Args:
    learner: how it learns.
    weights: the weights that learn, of each stage. Copies are updated alike.
    l2_names: those that the L2 term counts.

  Attributes:
    layouts: of the vectors that the learner keeps: `slots` with averages and, where
      several calls make an update, `accumulators`. Names are those of checkpoint
      entries.
    counters: its scalars by the names of their entries, with their dtypes.
  """

  def __init__(
    self, learner: Learner, weights: Layout, l2_names: Collection[str]
  ) -> None:
    self._update = learner.update
    self._rule = learner.update.rule
    self._steps = learner.params.accumulate_steps
    self._weights = weights
    self._names = sorted({name for shapes in weights.stages for name in shapes})
    self._l2 = frozenset(l2_names) if self._rule.l2 else frozenset()
    entries = [
      [
        (entry, spec.shape)
        for name, shape in shapes.items()
        for entry, spec in learner.state_specs(name, shape).items()
      ]
      for shapes in weights.stages
    ]
    self.layouts = {"slots": _layout(entries, accumulates=False)}
    self.counters = {STEP: np.int64, SKIPS: np.int64}
    if self._steps > 1:
      self.layouts["accumulators"] = _layout(entries, accumulates=True)
      self.counters |= {CALLS: np.int64, WEIGHT: np.float32}

  def run(
    self,
    stage: tf.Tensor,
    state: State,
    sums: tf.Tensor,
    weight: tf.Tensor,
    add: Add,
    measure: tf.Tensor,
  ) -> tuple[dict[str, tf.Tensor], Report]:
    """Updates if it is time to, unless weight or gradients forbid it.

    Args:
      stage: int32 scalar, which one this is.
      state: the vectors `weights` and of `layouts`, and the counters.
      sums: vector of the gradients of the sum of the loss.
      weight: float32 scalar, its total weight; NaN for no update.
      add: adds up tensors over the stages.
      measure: bool scalar, whether norms of the update and of weights are asked for.

    Returns:
      the new state; what `Learner.apply` reports of the whole model.
    """
    if self._steps == 1:
      return self._run(stage, state, sums, weight, add, measure)
    sums, weight = state["accumulators"] + sums, state[WEIGHT] + weight
    calls = state[CALLS] + 1
    due = calls >= self._steps
    new, report = self._run(stage, state, sums, weight, add, measure, due)
    gathered = {"accumulators": sums, CALLS: calls, WEIGHT: weight}
    new |= {n: tf.where(due, tf.zeros_like(v), v) for n, v in gathered.items()}
    none = {"learning_rate": report["learning_rate"], "l2_loss": report["l2_loss"]}
    report = {n: v if n in none else _if(due, v) for n, v in report.items()}
    return new, report

  def _run(
    self,
    stage: tf.Tensor,
    state: State,
    sums: tf.Tensor,
    weight: tf.Tensor,
    add: Add,
    measure: tf.Tensor,
    due: tf.Tensor | bool = True,
  ) -> tuple[dict[str, tf.Tensor], Report]:
    """Does what `run` does, with the sums of all calls of an update."""
    usable = (weight > 0) & tf.math.is_finite(weight)
    divisor = tf.where(usable, weight, 1.0)
    halves, l2_half = self._measured(stage, state, sums, divisor, add)
    nonfinite = ~tf.math.is_finite(halves)
    norm = tf.sqrt(2 * tf.reduce_sum(halves))
    applied = usable & ~tf.reduce_any(nonfinite) & tf.math.is_finite(norm)
    factor = self._update.clip_factor(norm)
    updates = state[STEP]
    rate = self._update.rate(updates)
    count = tf.cast(updates + 1, tf.float32)
    ema_rate = 1 - self._update.decay(count)
    scalars = Scalars(divisor, factor, rate, count, ema_rate)
    weights, slots = self._switch(stage, lambda k: self._new(k, state, sums, scalars))
    changes = applied & due
    skips = tf.where(applied, tf.zeros_like(updates), state[SKIPS] + 1)
    new = {
      "weights": tf.where(changes, weights, state["weights"]),
      "slots": tf.where(changes, slots, state["slots"]),
      STEP: tf.where(changes, updates + 1, updates),
      SKIPS: tf.where(due, skips, state[SKIPS]),
    }
    norms = self._norms(stage, state["weights"], new["weights"], add, measure)
    report = {
      "applied": applied,
      "skipped": ~applied,
      "consecutive_skips": skips,
      "grad_norm": norm,
      "clip_factor": tf.where(applied, factor, 0.0),
      "learning_rate": rate,
      "l2_loss": self._rule.l2 * l2_half,
      "update_norm": tf.where(applied, norms[0], 0.0),
      "param_norm": tf.where(applied, norms[1], 0.0),
      "weight": weight,
      "nonfinite": nonfinite,
    }
    return new, report

  def _switch(self, stage: tf.Tensor, make: Callable) -> tf.Tensor:
    count = len(self._weights.stages)
    return tf.switch_case(stage, [lambda k=k: make(k) for k in range(count)])

  def _measured(
    self, stage: tf.Tensor, state: State, sums: tf.Tensor, divisor: tf.Tensor, add: Add
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Measures mean gradients; each is measured by the first stage that has it.

    Returns:
      sum(x²)/2 of each, by sorted names; sum(w²)/2 of the weights with an L2 term.
    """
    count = len(self._names)

    def own(k: int) -> tf.Tensor:
      weights = self._weights.split(state["weights"], k)
      gradients = self._weights.split(sums, k)
      found: dict[int, tf.Tensor] = {}
      l2_halves = [tf.zeros([])]
      for name in self._weights.owned(k):
        weight = weights[name] if name in self._l2 else None
        mean = self._rule.mean(gradients[name], divisor, weight)
        found[self._names.index(name)] = tf.nn.l2_loss(mean)
        l2_halves += [tf.nn.l2_loss(weights[name])] if name in self._l2 else []
      found[count] = tf.add_n(l2_halves)
      return tf.scatter_nd(
        [[place] for place in found], tf.stack(list(found.values())), [count + 1]
      )

    halves = add(self._switch(stage, own))
    return halves[:count], halves[count]

  def _norms(
    self, stage: tf.Tensor, old: tf.Tensor, new: tf.Tensor, add: Add, measure: tf.Tensor
  ) -> tf.Tensor:
    """Gives the norms of the difference of all weights, and of the new ones: [2]."""

    def own(k: int) -> tf.Tensor:
      parts = [self._weights.split(vector, k) for vector in (new - old, new)]
      return tf.stack(
        [
          tf.add_n([tf.zeros([]), *[tf.nn.l2_loss(part[name]) for name in owned]])
          for part in parts
          for owned in [self._weights.owned(k)]
        ]
      )

    halves = tf.cond(measure, lambda: self._switch(stage, own), lambda: tf.zeros([2]))
    return tf.sqrt(2 * add(halves))

  def _new(
    self, stage: int, state: State, sums: tf.Tensor, scalars: Scalars
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives the new weights and slots of a stage."""
    layout = self.layouts["slots"]
    weights = self._weights.split(state["weights"], stage)
    slots = layout.split(state["slots"], stage)
    totals = self._weights.split(sums, stage)
    for name, weight in list(weights.items()):
      specs = self._rule.optimizer.slot_specs(self._weights.stages[stage][name])
      own = {slot: slots[f"slots/{name}/{slot}"] for slot in specs}
      weights[name], found = self._rule.new(
        weight, totals[name], own, scalars, l2=name in self._l2
      )
      slots |= {f"slots/{name}/{slot}": value for slot, value in found.items()}
      if self._rule.ema_decay:
        average = slots[f"ema/{name}"]
        slots[f"ema/{name}"] = average - self._rule.move(
          average, weights[name], scalars
        )
    return self._weights.join(weights, stage), layout.join(slots, stage)


def _layout(entries: list[list[tuple]], *, accumulates: bool) -> Layout:
  prefix = "accumulators/"
  return Layout(
    tuple(
      {entry: shape for entry, shape in own if entry.startswith(prefix) == accumulates}
      for own in entries
    )
  )


def _if(due: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
  """Gives a value, or zeros."""
  return tf.where(due, value, tf.zeros_like(value))
