"""One program on every device is training on one: losses, gradients, state, bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS, Network, toy_batches
from tests.spmd import harness as spmd
from tests.spmd import sequential
from tfpipe.optimizers import Adam

MARGIN = 1e-6


def assert_near(found, expected, margin: float = MARGIN) -> None:
  """Asserts that arrays differ by little, relative to the largest number of each."""
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    scale = max(float(np.abs(value).max(initial=0.0)), 1e-30)
    difference = float(np.abs(found[name] - value).max(initial=0.0)) / scale
    assert difference <= margin, (name, difference)


def gradients(tf, network: Network, devices, batch, count: int):
  """Losses and gradients of a mini-batch, one micro-batch after the other."""
  layers = [p.Instantiate() for p in network.layers()]
  weights = {**devices.values(), **devices.values("fixed")}
  return sequential.run(
    layers, network.fields, weights, batch, count, seed=harness.SEED
  )


@pytest.mark.parametrize(
  ("which", "stages", "number", "name"),
  [
    ("dropout", 1, 2, "gpipe"),
    ("dropout", 2, 4, "1f1b"),
    ("tied", 4, 4, "gpipe"),
    ("tied", 3, 1, "1f1b"),
    ("batch_norm", 3, 2, "eager_1f1b"),
    ("two_inputs", 4, 8, "gpipe"),
    ("losses", 4, 2, "1f1b"),
    ("tokens", 2, 4, "gpipe"),
    ("convolutions", 2, 2, "1f1b"),
    ("transformer", 4, 8, "eager_1f1b"),
    ("amoebanet", 2, 2, "gpipe"),
  ],
)
def test_losses_and_gradients_are_those_of_sequential_training(
  tf, which, stages, number, name
):
  network = NETWORKS[which]
  devices = spmd.start(
    tf, network, num_partitions=stages, num_micro_batches=number, name=name
  )
  (batch,) = network.batches(1)
  expected = gradients(tf, network, devices, batch, number)
  found = devices.step([batch])
  np.testing.assert_allclose(
    found[0]["micro_batch_losses"], expected.losses, rtol=MARGIN
  )
  own = devices.named("weights", [output["gradients"] for output in found])
  # A tape adds up in another order, of which norms of a few numbers make more.
  assert_near(own, expected.gradients, 1e-5 if which == "amoebanet" else MARGIN)


@pytest.mark.parametrize(
  ("which", "stages", "number", "pipelines", "margin"),
  [
    ("tied", 2, 2, 2, 2e-5),
    ("batch_norm", 2, 2, 1, 2e-5),
    ("tokens", 4, 2, 1, 2e-5),
    ("convolutions", 2, 2, 2, 2e-4),
  ],
)
def test_the_whole_state_is_that_of_the_device_back_end(
  tf, which, stages, number, pipelines, margin
):
  network = NETWORKS[which]
  devices = spmd.start(
    tf,
    network,
    num_partitions=stages,
    num_micro_batches=number,
    num_pipelines=pipelines,
  )
  other = harness.start(tf, network, num_micro_batches=number * pipelines)
  found, expected = [], {}
  for batch in network.batches(3):
    found = devices.step(spmd.parts(batch, pipelines))
    expected = other.step(batch)
  state = other.state()
  everything = {
    **devices.values(),
    **devices.values("fixed"),
    **devices.values("slots"),
  }
  counters = {"learner/step", "learner/consecutive_skips"}
  assert_near(everything, {n: v for n, v in state.items() if n not in counters}, margin)
  assert int(found[0]["state"]["updates"]) == state["learner/step"] == 3
  assert found[0]["update"]["grad_norm"] == pytest.approx(
    expected["update"]["grad_norm"], rel=1e-4
  )
  for name, pair in devices.metrics(found[0]).items():
    np.testing.assert_allclose(pair, expected["metrics"][name], rtol=1e-4)


def test_every_device_reports_the_same(tf):
  network = NETWORKS["tied"]
  devices = spmd.start(
    tf, network, num_partitions=2, num_micro_batches=2, num_pipelines=2
  )
  found = devices.step(spmd.parts(network.batches(1)[0], 2))
  for output in found[1:]:
    for key in ("metrics", "micro_batch_losses", "finite", "update"):
      tf.nest.map_structure(np.testing.assert_array_equal, output[key], found[0][key])


def test_what_is_not_finite_changes_nothing_but_counters(tf):
  network = NETWORKS["batch_norm"]
  devices = spmd.start(tf, network, num_partitions=2, num_micro_batches=2)
  (batch,) = network.batches(1)
  batch["target"][0, 0] = np.inf
  before = [dict(state) for state in devices.states]
  found = devices.step([batch])
  assert not found[0]["finite"]
  assert found[0]["update"]["skipped"]
  for old, new in zip(before, devices.states, strict=True):
    for vector in ("weights", "fixed", "slots"):
      np.testing.assert_array_equal(new[vector], old[vector])
    assert (new["step"], new["updates"], new["skips"]) == (1, 0, 1)


def test_an_optimizer_with_two_slots_and_a_schedule_of_its_own(tf):
  network = NETWORKS["dropout"]
  learner = {"optimizer": Adam.Params(), "ema_ramp": True}
  devices = spmd.start(
    tf,
    network,
    num_partitions=3,
    num_micro_batches=2,
    learner=harness.make_learner(**learner),
  )
  other = harness.start(
    tf, network, harness.make_learner(**learner), num_micro_batches=2
  )
  for batch in network.batches(2):
    devices.step([batch])
    other.step(batch)
  state = other.state()
  assert_near(devices.values("slots"), {n: state[n] for n in devices.values("slots")})
  assert_near(devices.values(), {n: state[n] for n in devices.values()})


def test_bfloat16_crosses_borders_and_weights_stay_float32(tf):
  network = NETWORKS["tokens"]
  devices = spmd.start(
    tf, network, num_partitions=2, num_micro_batches=2, compute_dtype="bfloat16"
  )
  other = harness.start(tf, network, num_micro_batches=2, compute_dtype="bfloat16")
  (batch,) = network.batches(1)
  found, expected = devices.step([batch]), other.step(batch)
  total = devices.metrics(found[0])["loss"]
  np.testing.assert_allclose(total, expected["metrics"]["loss"], rtol=1e-5)
  state = other.state()
  assert_near(devices.values(), {n: state[n] for n in devices.values()}, 1e-3)


def test_a_wrong_number_of_devices_is_refused(tf):
  network = Network(NETWORKS["tied"].layers, ("x",), toy_batches)
  with pytest.raises(ValueError, match="1 devices are given, the program is for 2"):
    spmd.VirtualDevices(
      spmd.make_program(tf, network, num_partitions=2, num_micro_batches=2), ["CPU:0"]
    )
