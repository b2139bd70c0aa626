"""Borders carry what real networks need: nests, masks, skips, no gradient at all."""

import numpy as np
import pytest

from tests.pipeline import harness, reference, toy, toy_borders
from tests.pipeline.networks import Network, toy_batches, toy_network

STEPS = 2
MODES = [("gpipe", "none"), ("1f1b", "cell"), ("gpipe", "layer")]

DENSE = toy.Dense.Params()
FROZEN = toy.Dense.Params().Set(trainable=False)
LOSS = toy.Regression.Params()


def _check(tf, network, lengths, modes=MODES):
  """Compares a cut network with plain TensorFlow, and each mode with the first."""
  expected, _ = reference.train(tf, network, network.batches(STEPS))
  states = [
    harness.train(
      tf,
      network,
      STEPS,
      lengths=lengths,
      num_partitions=len(lengths),
      num_micro_batches=4,
      name=name,
      remat=remat,
    )[0]
    for name, remat in modes
  ]
  harness.assert_close(states[0], expected)
  for state in states[1:]:
    assert not harness.differences(state, states[0])


def _nested_batches(steps):
  rng = np.random.default_rng(5)
  return [
    {
      **batch,
      "ids": rng.integers(toy_borders.ROWS_OF_TABLE, size=8).astype(np.int32),
      "mask": rng.random((8, 8)) < 0.7,
    }
    for batch in toy_batches(steps)
  ]


def test_nests_none_python_values_integers_and_masks_cross_every_border(tf):
  nested = toy_borders.Nested.Params()
  layers = [
    toy_borders.Open.Params(),
    *[nested] * 3,
    toy_borders.Close.Params(),
    LOSS,
  ]
  network = Network(lambda: toy.named(*layers), ("x", "ids", "mask"), _nested_batches)
  _check(tf, network, (2, 1, 3))
  _check(tf, network, (1, 1, 2, 2), modes=[("1f1b", "none")])


def test_tensors_without_gradient_and_skips_pass_over_several_stages(tf):
  network = toy_network(
    DENSE,
    toy_borders.Fork.Params(),
    DENSE,
    DENSE,
    toy_borders.Join.Params(),
    DENSE,
    LOSS,
  )
  _check(tf, network, (2, 1, 1, 3))


def test_sparse_gradients_cross_borders(tf):
  rows = toy_borders.Rows.Params()
  _check(tf, toy_network(DENSE, rows, DENSE, rows, LOSS), (1, 2, 2))


ODD_STAGES = {
  "the last is frozen": [[DENSE], [DENSE], [FROZEN, LOSS.Copy().Set(trainable=False)]],
  "the first is frozen": [[FROZEN], [DENSE], [LOSS]],
  "all but the middle are frozen": [
    [FROZEN],
    [DENSE],
    [LOSS.Copy().Set(trainable=False)],
  ],
  "the middle has no weights": [[DENSE], [toy_borders.Rows.Params()], [LOSS]],
  "the middle has a loss and no weights": [[DENSE], [toy.Penalty.Params()], [LOSS]],
  "the first has no weights": [[toy.Penalty.Params()], [DENSE], [LOSS]],
  "no gradient reaches the first two": [
    [FROZEN],
    [FROZEN, toy_borders.StopGradient.Params()],
    [DENSE, LOSS],
  ],
}


@pytest.mark.parametrize("stages", ODD_STAGES)
def test_stages_need_no_trained_weights(tf, stages):
  parts = ODD_STAGES[stages]
  network = toy_network(*[layer for part in parts for layer in part])
  _check(tf, network, tuple(len(part) for part in parts))


def test_a_trained_weight_that_no_gradient_reaches_is_refused_by_name(tf):
  network = toy_network(DENSE, toy_borders.StopGradient.Params(), DENSE, LOSS)
  with pytest.raises(ValueError, match="weight 'layer_0/b' has no gradient"):
    harness.start(tf, network, num_partitions=2, num_micro_batches=2)


@pytest.mark.parametrize(
  "lengths", [(1, 3), (2, 2), (3, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 1, 1, 1)]
)
def test_cells_with_two_inputs_may_be_cut_anywhere(tf, lengths):
  network = toy_network(*[toy.TwoInput.Params()] * 3, LOSS)
  _check(tf, network, lengths, modes=[MODES[sum(lengths[::2]) % 3]])
