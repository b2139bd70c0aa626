"""The update of a learner, on the vectors of a stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np

from tfpipe.lazy import tf
from tfpipe.optimizers.learner import Learner
from tfpipe.spmd.layout import Layout

Report: TypeAlias = "dict[str, tf.Tensor]"


class FlatUpdate:
  """One synchronous update of all stages, or none.

  Each stage updates its own weights by the optimizer's rule; sums over stages tell
  whether the gradients are finite, and their norm.

  Args:
    learner: how it learns.
    weights: the weights that learn, of each stage. Copies are updated alike.
    l2_names: those that the L2 term counts.

  Attributes:
    slots: what the learner keeps for each, by the names of its checkpoint entries.

  Raises:
    ValueError: the learner gathers several calls for an update.
  """

  def __init__(
    self, learner: Learner, weights: Layout, l2_names: Collection[str]
  ) -> None:
    steps = learner.params.accumulate_steps
    if steps != 1:
      raise ValueError(
        f"task.learner.accumulate_steps={steps}: must be 1 where all devices run one "
        "program; use more micro-batches"
      )
    self._rule = learner.rule
    self._weights = weights
    self._l2 = frozenset(l2_names) if self._rule.l2 else frozenset()
    self._specs = {
      name: self._rule.optimizer.slot_specs(shape)
      for shapes in weights.stages
      for name, shape in shapes.items()
    }
    entries = {
      name: learner.state_specs(name, shape)
      for shapes in weights.stages
      for name, shape in shapes.items()
    }
    self._entries = entries
    self.slots = Layout(
      tuple(
        {e: spec.shape for name in shapes for e, spec in entries[name].items()}
        for shapes in weights.stages
      )
    )

  def first_slots(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gives the values that slots and averages begin with."""
    return {
      entry: (
        values[name]
        if spec.initial is None
        else np.full(spec.shape, spec.initial, np.float32)
      )
      for name, specs in self._entries.items()
      for entry, spec in specs.items()
    }

  def run(
    self,
    stage: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    sums: tf.Tensor,
    weight: tf.Tensor,
    add: Callable[[tf.Tensor], tf.Tensor],
  ) -> tuple[dict[str, tf.Tensor], Report]:
    """Updates, unless weight or gradients forbid it.

    Args:
      stage: int32 scalar, which one this is.
      state: `weights` and `slots`, vectors of this stage; `updates` and `skips`, int64
        scalars.
      sums: vector of the gradients of the sum of the loss.
      weight: float32 scalar, its total weight; NaN for no update.
      add: adds up vectors over the stages.

    Returns:
      the new state; what `Learner.apply` reports of the whole model.
    """
    usable = (weight > 0) & tf.math.is_finite(weight)
    divisor = tf.where(usable, weight, 1.0)
    found = add(self._switch(stage, lambda k: self._measure(k, state, sums, divisor)))
    half, wrong, l2_half = tf.unstack(found)
    norm = tf.sqrt(2 * half)
    applied = usable & (wrong <= 0) & tf.math.is_finite(norm)
    factor = self._rule.clip_factor(norm) if self._rule.clip_norm else 1.0
    updates = state["updates"]
    rate = self._rule.rate(updates)
    count = tf.cast(updates + 1, tf.float32)
    scalars = (divisor, tf.convert_to_tensor(factor), rate, count)
    weights, slots = self._switch(stage, lambda k: self._new(k, state, sums, scalars))
    skips = tf.where(applied, tf.zeros_like(updates), state["skips"] + 1)
    new = {
      "weights": tf.where(applied, weights, state["weights"]),
      "slots": tf.where(applied, slots, state["slots"]),
      "updates": tf.where(applied, updates + 1, updates),
      "skips": skips,
    }
    report = {
      "applied": applied,
      "skipped": ~applied,
      "consecutive_skips": skips,
      "grad_norm": norm,
      "clip_factor": tf.where(applied, factor, 0.0),
      "learning_rate": rate,
      "l2_loss": self._rule.l2 * l2_half,
      "weight": weight,
    }
    return new, report

  def _switch(self, stage: tf.Tensor, make: Callable) -> tf.Tensor:
    count = len(self._weights.stages)
    return tf.switch_case(stage, [lambda k=k: make(k) for k in range(count)])

  def _measure(
    self,
    stage: int,
    state: Mapping[str, tf.Tensor],
    sums: tf.Tensor,
    divisor: tf.Tensor,
  ) -> tf.Tensor:
    """Measures the gradients that no stage before has.

    Returns:
      sum(x²)/2 of them, the number of those that are not finite, and sum(w²)/2 of the
      weights with an L2 term: float32 [3].
    """
    weights = self._weights.split(state["weights"], stage)
    gradients = self._weights.split(sums, stage)
    halves, l2_halves = [tf.zeros([])], [tf.zeros([])]
    for name in self._weights.owned(stage):
      mean = self._mean(name, gradients[name], divisor, weights[name])
      halves.append(tf.nn.l2_loss(mean))
      if name in self._l2:
        l2_halves.append(tf.nn.l2_loss(weights[name]))
    wrong = [tf.cast(~tf.math.is_finite(half), tf.float32) for half in halves]
    return tf.stack([tf.add_n(halves), tf.add_n(wrong), tf.add_n(l2_halves)])

  def _mean(
    self, name: str, total: tf.Tensor, divisor: tf.Tensor, weight: tf.Tensor
  ) -> tf.Tensor:
    gradient = total / divisor
    return gradient + self._rule.l2 * weight if name in self._l2 else gradient

  def _new(
    self,
    stage: int,
    state: Mapping[str, tf.Tensor],
    sums: tf.Tensor,
    scalars: tuple[tf.Tensor, ...],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives the new weights and slots of a stage."""
    divisor, factor, rate, count = scalars
    weights = self._weights.split(state["weights"], stage)
    slots = self.slots.split(state["slots"], stage)
    gradients = self._weights.split(sums, stage)
    for name, weight in list(weights.items()):
      mean = self._mean(name, gradients[name], divisor, weight)
      own = {slot: slots[f"slots/{name}/{slot}"] for slot in self._specs[name]}
      weights[name], found = self._rule.optimizer.update(
        weight, mean * factor if self._rule.clip_norm else mean, own, rate, count
      )
      slots |= {f"slots/{name}/{slot}": value for slot, value in found.items()}
      if self._rule.ema_decay:
        average = slots[f"ema/{name}"]
        move = (1 - self._rule.decay(count)) * (average - weights[name])
        slots[f"ema/{name}"] = average - move
    return self._weights.join(weights, stage), self.slots.join(slots, stage)
