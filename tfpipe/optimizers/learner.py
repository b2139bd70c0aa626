"""The learner: sums of gradients in, one update of all weights out.

Everything that must happen once per update, and not at all if it is skipped, happens
here: the division by the loss weight, the L2 term, the check for non-finite values, the
global norm and clipping, the optimizer, the moving averages and the counters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tfpipe.checks import (
  check_bool,
  check_choice,
  check_count,
  check_number,
  instantiate,
)
from tfpipe.lazy import tf
from tfpipe.optimizers import loss_scale
from tfpipe.optimizers import state as state_lib
from tfpipe.optimizers.accumulate import accumulate, clear
from tfpipe.optimizers.adam import Adam
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.optimizers.gradients import dense_gradients
from tfpipe.optimizers.learning_rate import LearningRateSchedule
from tfpipe.optimizers.replicas import (
  Replica,
  current_strategy,
  local_replicas,
  sum_over_replicas,
)
from tfpipe.optimizers.rule import Rule
from tfpipe.optimizers.update import Update
from tfpipe.params import InstantiableParams, Params

if TYPE_CHECKING:
  from tfpipe.optimizers.gradients import Gradient

  Metrics = dict[str, tf.Tensor]


class Learner:
  """Applies an optimizer to the weights of a model, wherever they are.

  `create_state` once, then `apply` in the `tf.function` of the training step. All that
  a weight needs (sum, slots, update, average) stays on that weight's device; only
  scalars meet on the host.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Returns the documented settings."""
    p = InstantiableParams(cls)
    p.Define("optimizer", Adam.Params(), "Params of the optimizer.")
    p.Define("learning_rate", 1e-3, "Learning rate, at least 0.")
    p.Define("lr_schedule", None, "Params of a schedule that multiplies it, or None.")
    p.Define(
      "clip_gradient_norm_to_value",
      0.0,
      "Largest norm of all gradients together; larger ones are scaled down. 0 is off.",
    )
    p.Define(
      "weight_decay_l2",
      0.0,
      "Factor λ of the loss term λ·sum(w²)/2 over the weights named for it. 0 is off.",
    )
    p.Define("ema_decay", 0.0, "Decay of the weights' moving averages. 0 is off.")
    p.Define(
      "ema_ramp", False, "Whether update n uses at most the decay (1 + n)/(10 + n)."
    )
    p.Define("nonfinite", "stop", "What a non-finite gradient does: 'stop' or 'skip'.")
    p.Define(
      "max_skips", 0, "Most skipped updates in a row before stopping. 0 sets no limit."
    )
    p.Define("accumulate_steps", 1, "Number of calls of apply that make one update.")
    p.Define(
      "loss_scale",
      0.0,
      "First factor of the sum of the loss with pipeline.compute_dtype=float16. A "
      f"gradient that is not finite halves it. 0: {loss_scale.FIRST:g}.",
    )
    p.Define(
      "loss_scale_steps",
      0,
      "Updates without such a gradient after which loss_scale doubles. 0: "
      f"{loss_scale.STEPS}.",
    )
    return p

  def __init__(self, params: Params) -> None:
    self.params = params.Copy()
    self.optimizer = instantiate(self, params, "optimizer", Optimizer)
    schedule = None
    if params.Get("lr_schedule") is not None:
      schedule = instantiate(self, params, "lr_schedule", LearningRateSchedule)
    self._l2 = check_number(self, params, "weight_decay_l2", "[0, inf)")
    self._ema_decay = check_number(self, params, "ema_decay", "[0, 1)")
    self._stops = check_choice(self, params, "nonfinite", ("stop", "skip")) == "stop"
    self._max_skips = check_count(self, params, "max_skips", 0)
    self._accumulate_steps = check_count(self, params, "accumulate_steps", 1)
    self._first_scale = loss_scale.check(self, params)
    update = Update(
      Rule(
        optimizer=self.optimizer,
        clip_norm=check_number(self, params, "clip_gradient_norm_to_value", "[0, inf)"),
        l2=self._l2,
        ema_decay=self._ema_decay,
      ),
      schedule=schedule,
      learning_rate=check_number(self, params, "learning_rate", "[0, inf)"),
      ema_ramp=check_bool(self, params, "ema_ramp"),
      scale_steps=check_count(self, params, "loss_scale_steps", 0) or loss_scale.STEPS,
      packed=False,
    )
    self._updates = (update, dataclasses.replace(update, packed=True))
    if update.ema_ramp and not self._ema_decay:
      raise ValueError("Learner.ema_ramp = True has no effect while ema_decay = 0")
    self._weights: dict[str, tf.Variable] = {}
    self._l2_names: list[str] = []
    self._state: dict[str, tf.Variable] = {}
    self._strategy: tf.distribute.Strategy | None = None
    self._replicas: list[Replica] = []

  @property
  def weight_names(self) -> tuple[str, ...]:
    """Names of the weights, sorted: the order of the metric `nonfinite`."""
    return tuple(self._weights)

  @property
  def update(self) -> Update:
    """How sums become an update, for who keeps weights and state elsewhere."""
    return self._updates[0]

  def state_specs(self, name: str, shape: tuple[int, ...]) -> dict[str, SlotSpec]:
    """Returns what `create_state` makes for one weight, without TensorFlow.

    Args:
      name: name of the weight.
      shape: its shape.

    Returns:
      Specs by checkpoint entry: `slots/<name>/<slot>`, `ema/<name>` and
      `accumulators/<name>`, each as far as the Params ask for it.
    """
    slots = self.optimizer.slot_specs(shape)
    specs = {f"slots/{name}/{slot}": spec for slot, spec in slots.items()}
    if self._ema_decay:
      specs[f"ema/{name}"] = SlotSpec(shape, initial=None)
    if self._accumulate_steps > 1:
      specs[f"accumulators/{name}"] = SlotSpec(shape)
    return specs

  def state_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns the memory of what `create_state` makes, without TensorFlow.

    Args:
      shapes: shapes of the weights to train, by name.

    Returns:
      Bytes by kind: `slots`, `ema`, `accumulators`; 0 for what the Params don't ask
      for. The learner's few scalars on the host are left out.
    """
    totals = {"slots": 0, "ema": 0, "accumulators": 0}
    for name, shape in shapes.items():
      for entry, spec in self.state_specs(name, shape).items():
        totals[entry.partition("/")[0]] += spec.bytes
    return totals

  def create_state(
    self,
    weights: Mapping[str, tf.Variable],
    l2_names: Collection[str] = (),
    *,
    scales_loss: bool = False,
  ) -> None:
    """Creates slots, averages, accumulators and counters for the weights to train.

    Under a `tf.distribute` strategy it must be called in the strategy's scope.

    Args:
      weights: float32 variables by layer name. A shared weight is given once.
      l2_names: the weights that `weight_decay_l2` acts on.
      scales_loss: whether the sums of `apply` are those of the loss times the state
        `learner/loss_scale`.

    Raises:
      ValueError: no weights, one variable under two names, another dtype, or L2 names
        that are unknown, or missing though `weight_decay_l2` is above 0; or the state
        exists already.
    """
    if self._state:
      raise ValueError("create_state was called before; a learner has one state")
    state_lib.check_weights(weights, l2_names)
    if self._l2 and not l2_names:
      raise ValueError(
        f"Learner.weight_decay_l2 = {self._l2} has no effect: l2_names is empty"
      )
    self._weights = {name: weights[name] for name in sorted(weights)}
    self._l2_names = sorted(l2_names) if self._l2 else []
    self._strategy = current_strategy()
    for name, weight in self._weights.items():
      shape = state_lib.static_shape(weight)
      for entry, spec in self.state_specs(name, shape).items():
        summed = entry.startswith("accumulators/")
        self._state[entry] = state_lib.create_variable(spec, weight, summed=summed)
    accumulates = self._accumulate_steps > 1
    self._state |= state_lib.create_counters(accumulates=accumulates)
    if scales_loss:
      self._state |= loss_scale.create(self._first_scale)
    self._replicas = local_replicas(self._weights, self._state)

  def state(self) -> dict[str, tf.Variable]:
    """Returns all variables of the learner by the names of their checkpoint entries."""
    return dict(self._state)

  def apply(
    self,
    gradient_sums: Mapping[str, Gradient],
    weight: tf.Tensor,
    measure: tf.Tensor | bool = True,
    *,
    packed: bool = False,
  ) -> Metrics:
    """Applies one update, or adds to it if `accumulate_steps` is above 1.

    To be called in a `tf.function`; under `tf.distribute` in the function that
    `strategy.run` runs. Sums and weight of all replicas are added once per update.

    With a weight that isn't above 0, or a gradient with a non-finite value (or with a
    sum of squares beyond float32), nothing changes but the number of consecutive skips,
    and what was accumulated is dropped.

    Args:
      gradient_sums: gradients, for every weight, of the sum of the loss over all
        examples of this call (not of its mean), times the loss scale if there is one.
      weight: scalar, the total weight of these examples.
      measure: bool scalar, whether `update_norm` and `param_norm` are asked for.
      packed: hand the sums of a layer, and its variables, to its update as one value,
        so that the graph does not grow with them. It cannot be compiled as a whole
        then, and what reads them in the same graph does not wait for the change.

    Returns:
      Scalars; in a call that only accumulates all are 0 but the rate and `l2_loss`:
      `applied`: bool, whether the weights changed.
      `skipped`: bool, whether an update was due and not applied.
      `consecutive_skips`: int64, number of skipped updates up to this one.
      `grad_norm`: norm of all mean gradients with the L2 term, before clipping.
      `clip_factor`: what the gradients were multiplied by; 0 if skipped.
      `learning_rate`: rate of this update.
      `l2_loss`: the L2 term of the loss, before the update.
      `update_norm`: norm of what was added to all weights; 0 if skipped or not asked.
      `param_norm`: norm of all weights after the update; likewise.
      `weight`: total weight of all calls and replicas.
      `nonfinite`: bool `[weights]`, by the order of `weight_names`.
      `loss_scale`: if there is one, that of these sums.

    Raises:
      ValueError: no state yet, another strategy, or gradients that don't match.
    """
    self._check_context()
    sums = dense_gradients(self._weights, gradient_sums)
    weight = tf.cast(weight, tf.float32)
    if self._accumulate_steps > 1:
      sums, weight = accumulate(self._state, sums, weight)
    if self._strategy:
      sums = dict(sums)  # replicas exchange tensors
    context = tf.distribute.get_replica_context()
    measure = tf.cast(measure, tf.int32)
    finish = functools.partial(self._finish, self._updates[packed])
    return context.merge_call(finish, args=(sums, weight, measure))

  def check(self, metrics: Mapping[str, Any]) -> None:
    """Stops training if the Params say so; for the host, after `apply` has run.

    Args:
      metrics: what `apply` returned, as values.

    Raises:
      FloatingPointError: the update was skipped, and either a gradient isn't finite and
        `nonfinite` is 'stop', or more than `max_skips` were skipped in a row. A loss
        scale that can still be halved answers for gradients that are not finite.
    """
    if not metrics["skipped"]:
      return
    flags = zip(self._weights, metrics["nonfinite"], strict=True)
    names = [name for name, flag in flags if flag]
    reason = f"the total loss weight is {float(metrics['weight'])}"
    if names:
      reason = f"the gradients of {len(names)} weights are not finite: "
      reason += ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    if names and self._stops and not loss_scale.explains(metrics):
      raise FloatingPointError(f"update not applied: {reason}")
    skips = int(metrics["consecutive_skips"])
    if self._max_skips and skips > self._max_skips:
      raise FloatingPointError(
        f"{skips} updates in a row were skipped, max_skips is {self._max_skips}; "
        f"in the last one {reason}"
      )

  def _check_context(self) -> None:
    if not self._state:
      raise ValueError("call create_state before apply")
    if tf.distribute.in_cross_replica_context():
      raise ValueError("apply needs a replica: call it in the function of strategy.run")
    if current_strategy() is not self._strategy:
      raise ValueError(
        f"apply runs under {current_strategy()}, but create_state was called under "
        f"{self._strategy}; call it in the scope of the same strategy"
      )

  def _finish(
    self,
    update: Update,
    strategy: tf.distribute.Strategy,
    sums: Mapping[str, tf.Tensor],
    weight: tf.Tensor,
    measure: tf.Tensor,
  ) -> Metrics:
    """Updates all replicas if an update is due. Runs once, for all replicas."""
    if self._accumulate_steps == 1:
      return self._update_all(update, strategy, sums, weight, measure)
    calls = self._replicas[0].state[state_lib.CALLS] + 1
    return tf.cond(
      calls >= self._accumulate_steps,
      lambda: self._close(update, strategy, sums, weight, measure),
      lambda: self._postpone(calls),
    )

  def _close(
    self,
    update: Update,
    strategy: tf.distribute.Strategy,
    sums: Mapping[str, tf.Tensor],
    weight: tf.Tensor,
    measure: tf.Tensor,
  ) -> Metrics:
    """Updates with what was accumulated, and starts from zero."""
    metrics = self._update_all(update, strategy, sums, weight, measure)
    for replica in self._replicas:
      clear(replica)
    return metrics

  def _postpone(self, calls: tf.Tensor) -> Metrics:
    """Counts a call that only accumulated."""
    for replica in self._replicas:
      replica.state[state_lib.CALLS].assign(calls)
    return self._updates[0].none(self._replicas[0], self._l2_names)

  def _update_all(
    self,
    update: Update,
    strategy: tf.distribute.Strategy,
    sums: Mapping[str, tf.Tensor],
    weight: tf.Tensor,
    measure: tf.Tensor,
  ) -> Metrics:
    """Adds up what all replicas have, in one exchange, and updates each of them."""
    replica_sums, weight = sum_over_replicas(
      strategy, sums, weight, self._weights, self._state[state_lib.STEP]
    )
    measure = strategy.experimental_local_results(measure)[0]
    return update.run(self._replicas, replica_sums, weight, self._l2_names, measure)
