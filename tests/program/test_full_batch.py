"""The gradient of a mini-batch depends on nothing but its examples and its loss.

Whatever the number of cells, micro-batches and accumulated calls, the schedule, the
optimizer and the averaging of the loss: every variable is that of a plain step on all
examples at once, with one tape and no pipeline, divided by the loss weight once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline import harness, toy
from tests.pipeline.networks import ROWS, toy_batches, toy_network
from tests.pipeline.reference import Reference, global_norm, mean_gradients
from tfpipe.lazy import tf as lazy_tf
from tfpipe.optimizers import SGD, Adafactor, Adam, AdamW, Momentum, RMSProp

UPDATES = 2
RATE = 0.05
# Epsilons that don't amplify the rounding of gradients near 0.
OPTIMIZERS = {
  "sgd": SGD.Params(),
  "momentum": Momentum.Params(),
  "nesterov": Momentum.Params().Set(nesterov=True),
  "rmsprop": RMSProp.Params().Set(momentum=0.9, epsilon=1.0),
  "adam": Adam.Params().Set(epsilon=1e-2),
  "adamw": AdamW.Params().Set(epsilon=1e-2, weight_decay=0.1),
  "adafactor": Adafactor.Params().Set(epsilon=1e-4),
}
# The weights of the examples of a call.
WEIGHTS = {
  "mean": np.ones(ROWS, np.float32),
  # With four micro-batches one weighs nothing.
  "weighted": np.array([1, 3, 0, 0.5, 0, 0, 2, 0.25], np.float32),
  "padded": np.array([1, 1, 1, 0, 0, 0, 0, 0], np.float32),
}


class SumLoss(toy.Regression):
  """The sum over the examples of a call: all of them together weigh 1."""

  def FProp(self, theta, x, *rest):
    metrics = super().FProp(theta, x, *rest)
    share = rest[-1].weight.shape[0] / ROWS
    return metrics | {"loss": (metrics.loss[0], lazy_tf.constant(share))}


LOSSES = {"sum": SumLoss.Params(), **dict.fromkeys(WEIGHTS, toy.Regression.Params())}


def network(loss):
  dense = toy.Dense.Params()
  return toy_network(dense, toy.TwoInput.Params(), toy.Penalty.Params(), LOSSES[loss])


def calls(loss, accumulate_steps):
  """Gives the batches of `UPDATES` updates."""
  batches = toy_batches(UPDATES * accumulate_steps)
  for batch in batches:
    batch["weight"] = WEIGHTS.get(loss, WEIGHTS["mean"])
  return batches


def full_batch_steps(tf, loss, optimizer, accumulate_steps):
  """Trains with each update's examples as one batch, by the bare rule."""
  plain = Reference(tf, network(loss))
  rule = optimizer.Instantiate()
  batches = calls(loss, accumulate_steps)
  slots = {
    name: {
      slot: tf.fill(spec.shape, spec.initial)
      for slot, spec in rule.slot_specs(plain.weights[name].shape).items()
    }
    for name in plain.trainable
  }
  averages = {name: plain.weights[name].astype(np.float64) for name in plain.trainable}
  for update in range(UPDATES):
    window = batches[update * accumulate_steps : (update + 1) * accumulate_steps]
    whole = {name: np.concatenate([b[name] for b in window]) for name in window[0]}
    sums, _, weight = plain.gradients(whole, update)
    gradients = mean_gradients(plain, sums, weight)
    factor = min(1.0, harness.CLIP_NORM / global_norm(gradients))
    for name, gradient in gradients.items():
      new, slots[name] = rule.update(
        tf.constant(plain.weights[name]),
        tf.constant(factor * gradient, tf.float32),
        slots[name],
        tf.constant(RATE),
        tf.constant(update + 1.0),
      )
      plain.weights[name] = new.numpy()
      averages[name] += (1 - harness.EMA_DECAY) * (new.numpy() - averages[name])
  state = dict(plain.weights)
  state |= {f"ema/{name}": average for name, average in averages.items()}
  for name, own in slots.items():
    state |= {f"slots/{name}/{slot}": value.numpy() for slot, value in own.items()}
  return state


def pipelined_steps(tf, loss, optimizer, accumulate_steps, **how):
  learner = harness.make_learner(
    optimizer=optimizer, learning_rate=RATE, accumulate_steps=accumulate_steps
  )
  training = harness.start(tf, network(loss), learner, **how)
  for batch in calls(loss, accumulate_steps):
    training.step(batch)
  return training.state()


def check(tf, loss, optimizer, accumulate_steps, **how):
  chosen = OPTIMIZERS[optimizer]
  state = pipelined_steps(tf, loss, chosen, accumulate_steps, **how)
  assert state.pop("learner/step") == UPDATES
  expected = full_batch_steps(tf, loss, chosen, accumulate_steps)
  rest = {name.split("/")[0] for name in state.keys() - expected.keys()}
  assert rest == {"learner"} | ({"accumulators"} if accumulate_steps > 1 else set())
  for name, value in expected.items():
    np.testing.assert_allclose(state[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_takes_the_full_batch_step(tf, optimizer):
  how = {"num_partitions": 2, "num_micro_batches": 4, "remat": "cell"}
  check(tf, "weighted", optimizer, 2, **how)


@settings(
  max_examples=12,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  loss=st.sampled_from(sorted(LOSSES)),
  optimizer=st.sampled_from(sorted(OPTIMIZERS)),
  accumulate_steps=st.integers(1, 3),
  num_micro_batches=st.sampled_from([1, 2, 4, 8]),
  num_partitions=st.integers(1, 4),
  name=st.sampled_from(["gpipe", "1f1b"]),
)
def test_no_way_to_divide_a_batch_changes_its_step(
  tf, loss, optimizer, accumulate_steps, **how
):
  check(tf, loss, optimizer, accumulate_steps, **how)
