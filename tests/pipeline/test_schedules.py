"""Every exact schedule is built by the one builder, and gives what GPipe gives."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline import harness, reference, toy
from tests.pipeline.networks import NETWORKS, toy_network
from tfpipe import schedule

STEPS = 5
MICRO_BATCHES = 4

V2 = {"stages_per_device": 2}

# (schedule, K, options): each sums gradients in the order of the micro-batches.
SAME_ORDER = [
  ("eager_1f1b", 3, {}),
  ("interleaved", 2, V2),
  ("zb_h1", 4, {}),
  ("zb_h2", 3, {}),
  ("zb_v", 2, {}),
  ("zb_interleaved", 2, V2),
  ("dualpipe_v", 2, {}),
]
# These sum backwards, or two copies apart: equal but for the rounding of float32 sums.
OTHER_ORDER = [
  ("looped_bfs", 2, V2),
  ("chimera", 4, {}),
  ("chimera", 4, {"num_pairs": 2}),
  ("chimera_doubling", 2, {}),
  ("chimera_halving", 2, {}),
]
REMAT = ("none", "cell", "layer")

QUICK = ("dropout", "tied", "batch_norm", "two_inputs", "losses", "tokens")
MODELS = ("transformer", "amoebanet")


def test_every_schedule_is_tried():
  tried = {name for name, _, _ in SAME_ORDER + OTHER_ORDER}
  assert tried | {"gpipe", "1f1b"} == set(schedule.NAMES)


@functools.cache
def _gpipe(tf, network):
  """Trains on one device, in four micro-batches, keeping everything."""
  return harness.train(
    tf, NETWORKS[network], STEPS, num_partitions=1, num_micro_batches=MICRO_BATCHES
  )


def _train(tf, network, case, remat):
  name, num_partitions, options = case
  return harness.train(
    tf,
    NETWORKS[network],
    STEPS,
    num_partitions=num_partitions,
    num_micro_batches=MICRO_BATCHES,
    name=name,
    remat=remat,
    **options,
  )


def _cases(cases):
  """Pairs each case with half of the networks; remat and networks go round."""
  return [
    pytest.param(
      QUICK[(i + 2 * j) % 6], case, REMAT[(i + j) % 3], id=f"{case[0]}-{i}-{j}"
    )
    for i, case in enumerate(cases)
    for j in range(3)
  ]


@pytest.mark.parametrize(("network", "case", "remat"), _cases(SAME_ORDER))
def test_the_bits_are_gpipes_where_sums_are_in_one_order(tf, network, case, remat):
  reference_state, reference_losses = _gpipe(tf, network)
  state, losses = _train(tf, network, case, remat)
  assert not harness.differences(state, reference_state)
  assert losses == reference_losses


@pytest.mark.parametrize(("network", "case", "remat"), _cases(OTHER_ORDER))
def test_the_values_are_gpipes_where_sums_are_in_another_order(
  tf, network, case, remat
):
  reference_state, reference_losses = _gpipe(tf, network)
  state, losses = _train(tf, network, case, remat)
  harness.assert_close(state, reference_state)
  assert losses == pytest.approx(reference_losses, rel=1e-6)


# The real models with a schedule of each kind: split, V-shaped, in loops, in two pipes.
@pytest.mark.parametrize("network", MODELS)
@pytest.mark.parametrize(
  ("case", "remat"),
  [(("zb_h1", 3, {}), "cell"), (("zb_v", 2, {}), "none"), (SAME_ORDER[1], "layer")],
)
def test_the_models_bits_are_gpipes(tf, network, case, remat):
  reference_state, reference_losses = _gpipe(tf, network)
  state, losses = _train(tf, network, case, remat)
  assert not harness.differences(state, reference_state)
  assert losses == reference_losses


@pytest.mark.parametrize("network", MODELS)
def test_the_models_values_are_gpipes_in_two_pipes(tf, network):
  reference_state, _ = _gpipe(tf, network)
  state, _ = _train(tf, network, ("chimera", 2, {}), "cell")
  harness.assert_close(state, reference_state)


CHAIN = toy_network(*[toy.Dense.Params()] * 17, toy.Regression.Params())


@settings(max_examples=25)
@given(st.data())
def test_the_gradient_of_any_schedule_is_that_of_one_device(tf, cpus, data):
  name = data.draw(st.sampled_from(schedule.NAMES))
  num_devices = data.draw(st.integers(1, 6))
  rows = data.draw(st.sampled_from((1, 2, 4, 8)))
  options = {}
  if "stages_per_device" in schedule.OPTIONS[name]:
    options["stages_per_device"] = data.draw(st.integers(0, 3))
  remat = data.draw(st.sampled_from(REMAT))
  if _refused(name, num_devices, rows, options):
    return
  batches = CHAIN.batches(1)
  expected, _ = _one_device(tf)
  training = harness.start(
    tf,
    CHAIN,
    name=name,
    num_partitions=num_devices,
    num_micro_batches=rows,
    remat=remat,
    devices=[cpus[i % len(cpus)] for i in range(num_devices)],
    **options,
  )
  training.step(batches[0])
  harness.assert_close(training.state(), expected)


def _refused(name, num_devices, rows, options):
  """Says whether a schedule cannot have these sizes."""
  try:
    schedule.make(name, num_devices, rows, **options)
  except ValueError:
    return True
  return False


@functools.cache
def _one_device(tf):
  return reference.train(tf, CHAIN, CHAIN.batches(1))
