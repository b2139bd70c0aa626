"""Small networks with their batches: together, every feature a pipeline must carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from models.amoebanet.blocks import ConvChain, conv_params
from models.amoebanet.heads import Classifier, Logits
from models.amoebanet.network import AmoebaNet
from models.transformer.language_model import TransformerLm
from tests.pipeline import toy
from tfpipe.layers.dropout import Dropout
from tfpipe.layers.embedding import Embedding
from tfpipe.layers.softmax_loss import SoftmaxLoss
from tfpipe.params import InstantiableParams

Batch = dict[str, np.ndarray]

ROWS = 8
DIM = 8
VOCAB = 11
LENGTH = 6


class Network(NamedTuple):
  """What is trained, and on what.

  Attributes:
    layers: gives the Params of the layers.
    fields: batch fields that enter the first layer.
    batches: gives the mini-batches of a number of steps.
  """

  layers: Callable[[], list[InstantiableParams]]
  fields: tuple[str, ...]
  batches: Callable[[int], list[Batch]]


def toy_batches(steps: int, rows: int = ROWS) -> list[Batch]:
  """Rows with weights; with four micro-batches of 8 rows, all of one has weight 0."""
  rng = np.random.default_rng(1)
  weight = np.resize(np.array([1, 1, 0, 1, 0, 0, 2, 0.5], np.float32), rows)
  return [
    {
      "x": rng.normal(size=(rows, DIM)).astype(np.float32),
      "target": rng.normal(size=(rows, DIM)).astype(np.float32),
      "weight": weight,
    }
    for _ in range(steps)
  ]


def text_batches(steps: int, rows: int = ROWS, length: int = LENGTH) -> list[Batch]:
  """Padded text; with four micro-batches of 8 rows, one is all padding."""
  rng = np.random.default_rng(2)
  weights = np.ones((rows, length), np.float32)
  weights[2 % rows, length // 2 :] = 0
  weights[4:6] = 0
  return [
    {
      "ids": rng.integers(VOCAB, size=(rows, length)).astype(np.int32),
      "labels": rng.integers(VOCAB, size=(rows, length)).astype(np.int32),
      "weights": weights,
    }
    for _ in range(steps)
  ]


def image_batches(steps: int) -> list[Batch]:
  rng = np.random.default_rng(3)
  return [
    {
      "image": rng.normal(size=(ROWS, 12, 12, 3)).astype(np.float32),
      "label": rng.integers(5, size=ROWS).astype(np.int32),
      "weight": np.array([1, 1, 0, 1, 1, 1, 1, 1], np.float32),
    }
    for _ in range(steps)
  ]


def tokens() -> list[InstantiableParams]:
  """A table with dropout, two layers, and the table again as softmax matrix."""
  dense = toy.Dense.Params().Set(dim=DIM)
  return toy.named(
    Embedding.Params().Set(
      name="embedding",
      vocab_size=VOCAB,
      dim=DIM,
      max_length=LENGTH,
      dropout_keep_prob=0.8,
    ),
    dense,
    dense,
    SoftmaxLoss.Params().Set(dim=DIM, vocab_size=VOCAB, tied_to="embedding/w"),
  )


def convolutions() -> list[InstantiableParams]:
  """Three convolutions with batch norm, and a classifier with dropout."""
  chain = ConvChain.Params()
  kernels = [conv_params((3, 3), channels, 4, (1, 1)) for channels in (3, 4, 4)]
  return toy.named(
    *[chain.Copy().Set(convs=[kernel]) for kernel in kernels],
    Classifier.Params().Set(
      dropout=Dropout.Params().Set(keep_prob=0.8),
      logits=Logits.Params().Set(input_channels=4, num_classes=5),
    ),
  )


def _transformer() -> list[InstantiableParams]:
  task = TransformerLm.Params().Set(
    vocab_size=VOCAB,
    sequence_length=LENGTH,
    num_layers=2,
    model_dim=DIM,
    ff_dim=16,
    num_heads=2,
    dropout_keep_prob=0.8,
    tie_embeddings=True,
    final_norm=True,
  )
  return task.Instantiate().Layers()


def _amoebanet() -> list[InstantiableParams]:
  task = AmoebaNet.Params().Set(
    genotype="amoebanet_d",
    num_cells=3,
    num_filters=8,
    num_classes=5,
    image_size=12,
    stem="small",
    stem_filters=8,
    dropout_keep=0.8,
    drop_path_keep=0.7,
    drop_path_steps=2,
  )
  return task.Instantiate().Layers()


def toy_network(*layers: InstantiableParams) -> Network:
  """A network on `x` whose layers go by position."""
  return Network(lambda: toy.named(*layers), ("x",), toy_batches)


_DENSE = toy.Dense.Params()
_DROPPING = toy.Dense.Params().Set(keep=0.7)
_LOSS = toy.Regression.Params()

NETWORKS = {
  "dropout": toy_network(_DROPPING, *[_DENSE, _DROPPING] * 2, _LOSS),
  "tied": toy_network(*[_DENSE] * 4, _LOSS.Copy().Set(tied_to="layer_0/w")),
  "batch_norm": toy_network(*[_DENSE, toy.Norm.Params()] * 3, _LOSS),
  "two_inputs": toy_network(*[toy.TwoInput.Params()] * 5, _LOSS),
  "losses": toy_network(_DENSE, *[toy.Penalty.Params(), _DENSE] * 2, _LOSS),
  "tokens": Network(tokens, ("ids",), text_batches),
  "convolutions": Network(convolutions, ("image",), image_batches),
  "transformer": Network(_transformer, ("ids",), text_batches),
  "amoebanet": Network(_amoebanet, ("image",), image_batches),
}
