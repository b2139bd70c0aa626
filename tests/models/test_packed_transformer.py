"""A text packed with others into a row is computed as if it were alone."""

import numpy as np
import pytest

from models.transformer.language_model import TransformerLm
from tests.layers.run_layer import start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.attention import SegmentAttention
from tfpipe.layers.base import tracing
from tfpipe.layers.embedding import SegmentEmbedding
from tfpipe.nested_map import NestedMap

# Three blocks of width 8 in float32, whose products sum in another order.
ATOL = 2e-5
LENGTHS = (3, 1, 4)
PADDED = 10


def lm(**changes):
  return TransformerLm.Params().Set(
    vocab_size=11,
    sequence_length=PADDED,
    num_layers=3,
    model_dim=8,
    ff_dim=12,
    num_heads=2,
    **changes,
  )


def layers_of(params):
  return [layer.Instantiate() for layer in params.Instantiate().Layers()]


def values_of(params):
  return {layer.name: start_values(layer) for layer in layers_of(params)}


def run(tf, params, values, batch):
  """Gives the metrics, and the gradients of the summed loss by weight name."""
  batch = {name: tf.constant(value) for name, value in batch.items()}
  weights = {
    (layer, path): tf.constant(value)
    for layer, own in values.items()
    for path, value in own.items()
  }
  with tf.GradientTape() as tape, tracing(do_eval=False):
    tape.watch(list(weights.values()))
    x = batch["ids"]
    for layer in layers_of(params):
      own = {path: w for (name, path), w in weights.items() if name == layer.name}
      side = NestedMap({name: batch[name] for name in layer.SIDE_INPUTS})
      x = layer.FProp(layer.Theta(own), x, *([side] if side else []))
    loss = x.loss[0]
  gradients = tape.gradient(loss, list(weights.values()))
  dense = [tf.convert_to_tensor(g).numpy() for g in gradients]
  return float(loss), float(x.loss[1]), dict(zip(weights, dense, strict=True))


def texts(seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(1, 11, (2, length)).astype(np.int32) for length in LENGTHS]


def packed(ids, labels):
  """Lays three texts into one row, and padding after them."""

  def row(parts):
    joined = np.concatenate(parts)
    return np.pad(joined, (0, PADDED - len(joined)))[None]

  return {
    "ids": row(ids).astype(np.int32),
    "labels": row(labels).astype(np.int32),
    "weights": row([np.ones(len(part)) for part in ids]).astype(np.float32),
    "positions": row([np.arange(len(part)) for part in ids]).astype(np.int32),
    "segment_ids": row(
      [np.full(len(part), i + 1) for i, part in enumerate(ids)]
    ).astype(np.int32),
  }


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none"])
def test_loss_and_gradients_are_the_sums_over_texts_alone(tf, positions):
  params = lm(positions=positions)
  values = values_of(params)
  alone = [
    run(
      tf,
      params,
      values,
      {
        "ids": ids[None],
        "labels": labels[None],
        "weights": np.ones((1, len(ids)), np.float32),
      },
    )
    for ids, labels in texts()
  ]
  ids, labels = zip(*texts(), strict=True)
  found = run(tf, params.Copy().Set(packed=True), values, packed(ids, labels))
  assert found[0] == pytest.approx(sum(loss for loss, *_ in alone), rel=1e-5)
  assert found[1] == sum(LENGTHS)
  for name, gradient in found[2].items():
    expected = sum(gradients[name] for *_, gradients in alone)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=ATOL)
    assert np.abs(expected).max() > 0, name


@pytest.mark.parametrize("changed", range(8))
def test_a_token_changes_only_its_own_text(tf, changed):
  params = SegmentAttention.Params().Set(dim=8, num_heads=2)
  layer = params.Instantiate()
  theta = layer.Theta(start_values(layer))
  segments = np.repeat([1, 2, 3], LENGTHS)[None].astype(np.int32)
  x = np.random.default_rng(1).normal(size=(1, 8, 8)).astype(np.float32)
  side = NestedMap(segment_ids=tf.constant(segments))
  before = layer.FProp(theta, tf.constant(x), side).numpy()
  x[:, changed] += 3.0
  after = layer.FProp(theta, tf.constant(x), side).numpy()
  moved = (before != after).any(-1)[0]
  same = segments[0] == segments[0, changed]
  np.testing.assert_array_equal(moved, same & (np.arange(8) >= changed))


def test_the_weights_of_a_packed_model_are_those_of_a_plain_one():
  for changes in ({}, {"positions": "learned"}):
    plain, packed_model = (
      {
        f"{layer.name}/{path}": weight
        for layer in layers_of(lm(packed=packed, **changes))
        for path, weight in layer.weights().items()
      }
      for packed in (False, True)
    )
    assert plain == packed_model


@pytest.mark.parametrize(
  ("layer", "x", "side", "message"),
  [
    (
      SegmentAttention.Params().Set(name="a", dim=8, num_heads=2),
      (2, 5, 8),
      {"segment_ids": ArraySpec((2, 4), "int32")},
      r"^a: segment_ids are \(2, 4\), but the input is \(2, 5, 8\)$",
    ),
    (
      SegmentEmbedding.Params().Set(name="e", vocab_size=9, dim=8, max_length=5),
      (2, 5),
      {"positions": ArraySpec((1, 5), "int32")},
      r"^e: positions are \(1, 5\), but ids are \(2, 5\)$",
    ),
  ],
)
def test_fields_of_another_shape_are_refused(layer, x, side, message):
  with pytest.raises(ValueError, match=message):
    layer.cls.FPropMeta(layer, ArraySpec(x), NestedMap(side))


def test_packed_is_true_or_false():
  with pytest.raises(TypeError, match=r"TransformerLm\.packed = 1: it must be True or"):
    lm(packed=1).Instantiate()
