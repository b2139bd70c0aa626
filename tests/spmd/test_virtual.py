"""One program on every device is training on one: losses and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import NETWORKS, Network
from tests.spmd import sequential
from tests.spmd.harness import MARGIN, Spmd, assert_near
from tfpipe.spmd.devices import Devices


def gradients(network: Network, devices: Devices, batch, count: int):
  """Losses and gradients of a mini-batch, one micro-batch after the other."""
  layers = [p.Instantiate() for p in network.layers()]
  prefix = "weights/"
  weights = {
    name.removeprefix(prefix): value
    for name, value in devices.entries().items()
    if name.startswith(prefix)
  }
  return sequential.run(
    layers, network.fields, weights, batch, count, seed=harness.SEED
  )


@pytest.mark.parametrize(
  ("which", "stages", "number", "name", "remat"),
  [
    ("dropout", 1, 2, "gpipe", "none"),
    ("dropout", 2, 4, "1f1b", "cell"),
    ("tied", 4, 4, "gpipe", "layer"),
    ("tied", 3, 1, "1f1b", "none"),
    ("batch_norm", 3, 2, "eager_1f1b", "cell"),
    ("two_inputs", 4, 8, "gpipe", "none"),
    ("losses", 4, 2, "1f1b", "layer"),
    ("tokens", 2, 4, "gpipe", "cell"),
    ("convolutions", 2, 2, "1f1b", "none"),
    ("transformer", 4, 8, "eager_1f1b", "layer"),
    ("amoebanet", 2, 2, "gpipe", "cell"),
  ],
)
def test_losses_and_gradients_are_those_of_sequential_training(
  tf, which, stages, number, name, remat
):
  network = NETWORKS[which]
  spmd = Spmd(
    tf,
    network,
    num_partitions=stages,
    num_micro_batches=number,
    name=name,
    remat=remat,
  )
  (batch,) = network.batches(1)
  expected = gradients(network, spmd.devices, batch, number)
  found = spmd.step(batch)
  np.testing.assert_allclose(
    found[0]["micro_batch_losses"], expected.losses, rtol=MARGIN
  )
  own = spmd.program.unpack("weights", [output["gradients"] for output in found])
  own = {name.removeprefix("weights/"): value for name, value in own.items()}
  # A tape adds up in another order, of which norms of a few numbers make more.
  assert_near(own, expected.gradients, 1e-5 if which == "amoebanet" else MARGIN)
