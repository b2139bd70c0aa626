"""The equalities that guard everything: any K, any exact schedule, remat or not."""

import numpy as np
import pytest

from models.transformer.language_model import TransformerLm
from tests.pipeline import harness, toy

STEPS = 5


def toy_batches(rows=8, dim=8):
  rng = np.random.default_rng(1)
  return [
    {
      "x": rng.normal(size=(rows, dim)).astype(np.float32),
      "target": rng.normal(size=(rows, dim)).astype(np.float32),
      "weight": np.array([1, 1, 0, 1, 0.5, 1, 2, 1], np.float32),
    }
    for _ in range(STEPS)
  ]


def text_batches(rows=8, length=6, vocab=11):
  rng = np.random.default_rng(2)
  batches = []
  for _ in range(STEPS):
    weights = np.ones((rows, length), np.float32)
    weights[2, 3:] = 0
    weights[5] = 0
    batches.append(
      {
        "ids": rng.integers(vocab, size=(rows, length)).astype(np.int32),
        "labels": rng.integers(vocab, size=(rows, length)).astype(np.int32),
        "weights": weights,
      }
    )
  return batches


def _named(*layers):
  return [p.Copy().Set(name=f"layer_{i}") for i, p in enumerate(layers)]


def _transformer():
  task = TransformerLm.Params().Set(
    vocab_size=11,
    sequence_length=6,
    num_layers=4,
    model_dim=8,
    ff_dim=16,
    num_heads=2,
    dropout_keep_prob=0.8,
    tie_embeddings=True,
    final_norm=True,
  )
  return task.Instantiate().Layers()


NETWORKS = {
  "dropout": (
    lambda: _named(*[toy.Dense.Params().Set(keep=0.7)] * 5, toy.Regression.Params()),
    ("x",),
    toy_batches,
  ),
  "tied": (
    lambda: _named(
      *[toy.Dense.Params()] * 4, toy.Regression.Params().Set(tied_to="layer_0/w")
    ),
    ("x",),
    toy_batches,
  ),
  "batch_norm": (
    lambda: _named(
      *[toy.Dense.Params(), toy.Norm.Params()] * 3, toy.Regression.Params()
    ),
    ("x",),
    toy_batches,
  ),
  "two_inputs": (
    lambda: _named(*[toy.TwoInput.Params()] * 5, toy.Regression.Params()),
    ("x",),
    toy_batches,
  ),
  "transformer": (_transformer, ("ids",), text_batches),
}


def _train(tf, network, num_partitions, name, remat):
  layers, fields, batches = NETWORKS[network]
  pipeline = harness.make_pipeline(
    tf,
    layers(),
    num_partitions=num_partitions,
    num_micro_batches=4,
    name=name,
    remat=remat,
    input_fields=fields,
  )
  return harness.train(tf, pipeline, harness.make_learner(), batches())


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_slots_and_averages_are_bit_equal_for_every_cut_schedule_and_remat(
  tf, network
):
  reference, losses = _train(tf, network, 1, "gpipe", "none")
  assert losses[0] != losses[-1]
  for num_partitions in (1, 2, 3, 4):
    for name in ("gpipe", "1f1b"):
      for remat in ("none", "cell", "layer"):
        case = f"K={num_partitions} {name} remat={remat}"
        state, case_losses = _train(tf, network, num_partitions, name, remat)
        assert not harness.differences(state, reference), case
        assert case_losses == losses, case
