"""One program on every device changes the whole state as the device back end does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS
from tests.spmd.harness import Spmd, assert_near, entries, make_program
from tfpipe.optimizers import Adam
from tfpipe.spmd import strategies
from tfpipe.spmd.devices import Devices
from tfpipe.spmd.feed import Feeder
from tfpipe.spmd.mini_batch import MiniBatch


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
  spmd = Spmd(
    tf,
    network,
    num_partitions=stages,
    num_micro_batches=number,
    num_pipelines=pipelines,
  )
  other = harness.start(tf, network, num_micro_batches=number * pipelines)
  found, expected = [], {}
  for batch in network.batches(3):
    found = spmd.step(batch)
    expected = other.step(batch)
  state = spmd.devices.entries()
  assert_near(state, entries(other), margin)
  assert state["learner/step"] == state["step"] == 3
  assert_same_report(found[0], expected)


def assert_same_report(found, expected) -> None:
  """Asserts that two steps tell the same."""
  assert found["update"].keys() == expected["update"].keys()
  assert found.keys() - {"gradients"} == expected.keys()
  for name, value in expected["update"].items():
    np.testing.assert_allclose(found["update"][name], value, rtol=1e-4, err_msg=name)
  for name, pair in expected["metrics"].items():
    np.testing.assert_allclose(found["metrics"][name], pair, rtol=1e-4)


def test_every_device_reports_the_same(tf):
  network = NETWORKS["tied"]
  spmd = Spmd(tf, network, num_partitions=2, num_micro_batches=2, num_pipelines=2)
  found = spmd.step(network.batches(1)[0])
  for output in found[1:]:
    for key in ("metrics", "micro_batch_losses", "finite", "update"):
      tf.nest.map_structure(np.testing.assert_array_equal, output[key], found[0][key])


def test_what_is_not_finite_changes_nothing_but_counters(tf):
  network = NETWORKS["batch_norm"]
  spmd = Spmd(tf, network, num_partitions=2, num_micro_batches=2)
  (batch,) = network.batches(1)
  batch["target"][0, 0] = np.inf
  before = spmd.devices.entries()
  found = spmd.step(batch)
  assert not found[0]["finite"]
  assert found[0]["update"]["skipped"]
  assert found[0]["update"]["nonfinite"].any()
  after = spmd.devices.entries()
  counters = {"step": 1, "learner/consecutive_skips": 1}
  for name, value in before.items():
    np.testing.assert_array_equal(after[name], counters.get(name, value), name)


@pytest.mark.parametrize(
  "settings",
  [
    {"optimizer": Adam.Params(), "ema_ramp": True},
    {"optimizer": Adam.Params(), "accumulate_steps": 2},
  ],
)
def test_a_learner_of_another_kind(tf, settings):
  network = NETWORKS["batch_norm"]
  spmd = Spmd(
    tf,
    network,
    num_partitions=3,
    num_micro_batches=2,
    learner=harness.make_learner(**settings),
  )
  other = harness.start(
    tf, network, harness.make_learner(**settings), num_micro_batches=2
  )
  for batch in network.batches(3):
    assert_same_report(spmd.step(batch)[0], other.step(batch))
  assert_near(spmd.devices.entries(), entries(other), 2e-5)


def test_sums_of_several_calls_that_are_not_finite_are_dropped_together(tf):
  network = NETWORKS["tied"]
  settings = {"accumulate_steps": 2}
  spmd = Spmd(
    tf,
    network,
    num_partitions=2,
    num_micro_batches=2,
    learner=harness.make_learner(**settings),
  )
  other = harness.start(
    tf, network, harness.make_learner(**settings), num_micro_batches=2
  )
  first, *rest = network.batches(4)
  first["x"][0, 0] = np.nan
  for batch in (first, *rest):
    found, expected = spmd.step(batch)[0], other.step(batch)
    for name in ("applied", "skipped", "consecutive_skips"):
      assert found["update"][name] == expected["update"][name]
  assert_near(spmd.devices.entries(), entries(other), 2e-5)


def test_several_steps_of_a_call_are_those_of_several_calls(tf):
  network = NETWORKS["dropout"]
  how = {"num_partitions": 2, "num_micro_batches": 2}
  one, several = Spmd(tf, network, **how), Spmd(tf, network, 3, **how)
  batches = network.batches(3)
  expected = [one.step(batch)[0] for batch in batches]
  together = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
  found = several.call(together)
  for number, given in enumerate(expected):
    tf.nest.map_structure(
      lambda all_, own, number=number: np.testing.assert_array_equal(all_[number], own),
      found,
      given,
    )
  assert not harness.differences(several.devices.entries(), one.devices.entries())


def test_a_call_goes_on_after_a_step_without_any_weight(tf):
  network, how = NETWORKS["tied"], {"num_partitions": 2, "num_micro_batches": 2}
  devices = Spmd(tf, network, 3, halts=True, **how)
  batches = network.batches(3)
  batches[1]["weight"] = np.zeros_like(batches[1]["weight"])
  found = devices.call(
    {name: np.stack([b[name] for b in batches]) for name in batches[0]}
  )
  assert found["update"]["applied"].tolist() == [True, False, True]
  assert devices.devices.entries()["step"] == 3


def test_a_call_ends_with_a_step_that_is_not_finite(tf):
  network, how = NETWORKS["tied"], {"num_partitions": 2, "num_micro_batches": 2}
  one, several = (Spmd(tf, network, n, halts=True, **how) for n in (1, 3))
  batches = network.batches(3)
  batches[1]["x"][0, 0] = np.nan
  for batch in batches[:2]:
    one.step(batch)
  found = several.call(
    {name: np.stack([b[name] for b in batches]) for name in batches[0]}
  )
  assert found["finite"].tolist() == [True, False, False]
  assert found["update"]["skipped"].tolist() == [False, True, False]
  assert not harness.differences(several.devices.entries(), one.devices.entries())


def test_bfloat16_crosses_borders_and_weights_stay_float32(tf):
  network = NETWORKS["tokens"]
  how = {"num_micro_batches": 2, "compute_dtype": "bfloat16"}
  for remat in ("cell", "none"):
    spmd = Spmd(tf, network, num_partitions=2, remat=remat, **how)
    other = harness.start(tf, network, **how)
    (batch,) = network.batches(1)
    found, expected = spmd.step(batch), other.step(batch)
    loss = found[0]["metrics"]["loss"]
    np.testing.assert_allclose(loss, expected["metrics"]["loss"], rtol=1e-5)
    assert_near(spmd.devices.entries(), entries(other), 1e-3)


def test_a_wrong_number_of_devices_is_refused(tf, cpus):
  program = make_program(tf, NETWORKS["tied"], num_partitions=2, num_micro_batches=2)
  with pytest.raises(ValueError, match="1 devices are given, the program is for 2"):
    Devices(program, *strategies.virtual(cpus[:1]))


def test_a_batch_of_unknown_size_is_refused(tf, cpus):
  strategy, _ = strategies.virtual(cpus[:2])
  batches = tf.data.Dataset.range(3).map(lambda n: {"x": n}).batch(2)
  with pytest.raises(ValueError, match=r"input: x has shape \(None,\)"):
    Feeder(strategy, MiniBatch({}, 1), 2).all(batches)
