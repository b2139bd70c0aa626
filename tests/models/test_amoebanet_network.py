import numpy as np
import pytest

from models.amoebanet.heads import AuxCell, AuxHead, Classifier, Logits
from models.amoebanet.network import AmoebaNet
from tests.layers import reference
from tests.layers.run_layer import call, start_values
from tests.models.network_costs import network_costs
from tfpipe.cost import ArraySpec
from tfpipe.layers.base import tracing
from tfpipe.layers.dropout import Dropout
from tfpipe.nested_map import NestedMap

EPSILON = 1e-3


def small(**settings):
  """A network for pictures of 28 × 28 pixels."""
  p = AmoebaNet.Params().Set(
    num_cells=3, num_filters=8, num_classes=10, image_size=28, channels=1, stem="small"
  )
  return p.Set(**settings)


def layers(**settings):
  return {p.name: p for p in small(**settings).Instantiate().Layers()}


def sides(**settings):
  p = small(**settings)
  image = ArraySpec((2, p.image_size, p.image_size, p.channels))
  found = network_costs(p.Instantiate(), [image])
  return {c.name: c.out_shapes[0].shape[1] for c in found[1:-1]}


def test_the_small_stem_keeps_the_size_of_the_picture():
  assert sides() == {
    "cell_0": 28,
    "reduction_0": 14,
    "cell_1": 14,
    "reduction_1": 7,
    "cell_2": 7,
  }
  assert list(layers()) == ["stem_conv", *sides(), "classifier"]


@pytest.mark.parametrize(
  ("num_cells", "order"),
  [(3, "0 r 1 r 2"), (4, "0 r 1 r 2 3"), (5, "0 r 1 2 r 3 4"), (6, "0 1 r 2 3 r 4 5")],
)
def test_reductions_come_after_a_third_and_two_thirds_of_the_cells(num_cells, order):
  names = list(layers(num_cells=num_cells))[1:-1]
  short = ["r" if "reduction" in name else name.split("_")[1] for name in names]
  assert " ".join(short) == order


def test_filters_double_with_each_reduction():
  found = [p.filters for p in list(layers(num_filters=12).values())[1:-1]]
  assert found == [12, 24, 24, 48, 48]
  imagenet = layers(stem="imagenet", num_filters=16, image_size=64)
  assert [imagenet[f"stem_cell_{i}"].filters for i in (0, 1)] == [4, 8]


def test_layer_names_and_weights_are_unique_and_stable():
  found = layers()
  weights = [
    f"{name}/{path}" for name, p in found.items() for path in p.Instantiate().weights()
  ]
  assert len(set(weights)) == len(weights)
  assert "stem_conv/conv_0/w" in weights
  assert "cell_0/op_3/conv_1/w" in weights
  assert "reduction_0/previous/conv_0/w" in weights
  assert weights[-2:] == ["classifier/logits/w", "classifier/logits/b"]


def test_kernels_and_only_they_count_in_the_l2_term():
  for p in layers(aux_head=True, genotype="amoebanet_b").values():
    for path, weight in p.Instantiate().weights().items():
      kernel = path.rpartition("/")[2] in ("w", "depthwise", "pointwise")
      assert weight.l2 == kernel, path


def test_a_tiny_picture_whose_maps_cannot_halve_still_works():
  assert set(sides(image_size=3).values()) == {3, 2, 1}
  assert set(sides(image_size=1, num_cells=6).values()) == {1}


def test_settings_reach_the_layers():
  p = small(dropout_keep=0.9, label_smoothing=0.2, dilation=2)
  p.norm.Set(decay=0.8, epsilon=1e-4)
  found = {layer.name: layer for layer in p.Instantiate().Layers()}
  assert found["classifier"].dropout.keep_prob == 0.9
  assert found["classifier"].loss.label_smoothing == 0.2
  assert found["cell_1"].dilation == 2
  norms = [found["stem_conv"].norm, found["cell_1"].norm]
  assert [(norm.decay, norm.epsilon) for norm in norms] == [(0.8, 1e-4)] * 2


def test_a_layer_of_the_list_can_be_changed_alone():
  found = layers()
  found["cell_0"].norm.decay = 0.5
  assert found["cell_1"].norm.decay != 0.5


def keeps(**settings):
  found = layers(drop_path_keep=0.6, drop_path_steps=50, **settings)
  return {n: p.drop_path for n, p in list(found.items())[1:-1]}


def test_drop_path_v1_depends_on_time_only():
  assert {p.keep_prob for p in keeps().values()} == {0.6}
  assert {p.total_steps for p in keeps().values()} == {50}


def test_drop_path_v3_drops_more_in_later_cells():
  found = keeps(drop_path_version="v3")
  expected = [1 - (i + 1) / 5 * 0.4 for i in range(5)]
  assert [p.keep_prob for p in found.values()] == pytest.approx(expected)
  imagenet = keeps(
    drop_path_version="v3",
    stem="imagenet",
    num_filters=16,
    image_size=64,
    num_cells=18,
  )
  assert imagenet["stem_cell_0"].keep_prob == pytest.approx(1 - 1 / 22 * 0.4)
  assert imagenet["cell_17"].keep_prob == pytest.approx(0.6)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"genotype": "amoebanet-d"}, "genotype = 'amoebanet-d'.*did you mean 'amoebanet_"),
    ({"num_cells": 2}, "AmoebaNet.num_cells = 2.*at least 3"),
    ({"num_filters": 10}, "AmoebaNet.num_filters = 10: .*multiple of 4"),
    ({"stem": "imagenet", "num_filters": 12}, "AmoebaNet.num_filters = 12.*least 16"),
    ({"stem": "tiny"}, "stem = 'tiny'.*'imagenet', 'small'"),
    ({"num_classes": 1}, "AmoebaNet.num_classes = 1"),
    ({"drop_path_version": "v2"}, "drop_path_version = 'v2'"),
    ({"drop_path_keep": 0.0}, r"AmoebaNet.drop_path_keep = 0\.0"),
    ({"drop_path_steps": 0}, "AmoebaNet.drop_path_steps = 0"),
    ({"dropout_keep": 0.0}, r"AmoebaNet.dropout_keep = 0\.0"),
    ({"label_smoothing": 1.0}, r"AmoebaNet.label_smoothing = 1\.0"),
    ({"aux_weight": 0.0}, r"AmoebaNet.aux_weight = 0\.0"),
    ({"aux_head": True, "image_size": 8}, "aux_head.* 4 pixels.*at least 5"),
    ({"stem": "imagenet", "image_size": 2}, "AmoebaNet.image_size = 2"),
  ],
)
def test_bad_settings_are_refused_before_any_layer_is_made(settings, message):
  with pytest.raises(ValueError, match=message):
    small(**settings).Instantiate()


# Heads.


def test_the_aux_head_sits_on_the_last_cell_before_the_second_reduction():
  found = layers(aux_head=True, num_cells=18, num_filters=4)
  assert [n for n, p in found.items() if p.cls is AuxCell] == ["cell_11"]
  head = found["cell_11"].aux_head
  assert (head.side, head.input_channels, head.num_classes) == (14, 4 * 8, 10)


def aux_head(side, channels, classes):
  return AuxHead.Params().Set(
    name="aux", side=side, input_channels=channels, num_classes=classes
  )


@pytest.mark.parametrize("side", [5, 14])
def test_the_aux_head_is_pool_conv_conv_and_logits(tf, side):
  p = aux_head(side, 8, 10)
  values = start_values(p.Instantiate())
  x = np.random.default_rng(1).normal(size=(3, side, side, 8)).astype(np.float32)
  y = reference.avg_pool(reference.relu(x), 5, 3, "VALID")
  shapes = []
  for i in range(2):
    kernel = values[f"chain/conv_{i}/w"]
    y = reference.conv2d(y, kernel, padding="VALID")
    gamma, beta = (values[f"chain/norm_{i}/{n}"] for n in ("gamma", "beta"))
    y = reference.relu(reference.batch_norm(y, gamma, beta, EPSILON))
    shapes.append(kernel.shape)
  rest = (side - 5) // 3 + 1
  assert shapes == [(1, 1, 8, 51), (rest, rest, 51, 307)]
  expected = y[:, 0, 0] @ values["logits/w"] + values["logits/b"]
  np.testing.assert_allclose(call(tf, p, values, tf.constant(x)), expected, atol=1e-3)


def run_aux_cell(tf, weight, do_eval=False):
  p = layers(aux_head=True)["cell_1"]
  layer = p.Instantiate()
  theta = layer.Theta(start_values(layer))
  rng = np.random.default_rng(2)
  shapes = (2, 14, 14, p.input_channels), (2, 28, 28, p.previous_channels)
  maps = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
  side = NestedMap(label=tf.constant([3, 9]), weight=tf.constant(weight, tf.float32))
  with tracing(do_eval=do_eval) as aux:
    y, handed_on = layer.FProp(theta, *maps, side)
  with tracing(do_eval=do_eval):
    logits = layer.aux_head.FProp(theta.aux_head, y)
  assert handed_on is maps[0]
  return aux.losses, logits.numpy().astype(np.float64)


def test_the_aux_loss_is_the_weighted_sum_times_its_weight(tf):
  weight = np.array([1.0, 0.5])
  (loss,), logits = run_aux_cell(tf, weight)
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  q = np.full((2, 10), 0.1 / 10)
  q[[0, 1], [3, 9]] += 0.9
  expected = 0.4 * (weight * -(q * log_p).sum(1)).sum()
  assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_examples_of_weight_0_have_no_aux_loss(tf):
  (loss,), _ = run_aux_cell(tf, [0.0, 0.0])
  assert float(loss) == 0


def test_evaluation_has_no_aux_loss(tf):
  losses, _ = run_aux_cell(tf, [1.0, 1.0], do_eval=True)
  assert losses == []


def classifier(keep):
  return Classifier.Params().Set(
    name="classifier",
    dropout=Dropout.Params().Set(keep_prob=keep),
    logits=Logits.Params().Set(input_channels=12, num_classes=7),
  )


@pytest.mark.parametrize(("keep", "do_eval"), [(1.0, False), (0.5, True)])
def test_the_classifier_is_relu_pool_logits_and_loss(tf, keep, do_eval):
  p = classifier(keep)
  values = start_values(p.Instantiate())
  x = np.random.default_rng(1).normal(size=(3, 4, 4, 12)).astype(np.float32)
  side = NestedMap(label=tf.constant([0, 1, 6]), weight=tf.constant([1.0, 0.0, 2.0]))
  inputs = tf.constant(x), tf.zeros([3, 8, 8, 5]), side
  found = call(tf, p, values, *inputs, do_eval=do_eval)
  logits = np.maximum(x, 0).mean((1, 2)) @ values["logits/w"] + values["logits/b"]
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  assert float(found.loss[0]) == pytest.approx(-log_p[0, 0] - 2 * log_p[2, 6], rel=1e-5)
  assert float(found.loss[1]) == 3
  assert list(found) == ["loss", "accuracy", "accuracy_top5"]


def test_the_classifier_drops_features_in_training(tf):
  p = classifier(0.5)
  assert p.Instantiate().seeds() == ["dropout/seed"]
  values = start_values(p.Instantiate())
  side = NestedMap(label=tf.zeros([4], tf.int32), weight=tf.ones([4]))
  inputs = tf.ones([4, 2, 2, 12]), tf.zeros([4, 4, 4, 5]), side
  losses = {
    float(call(tf, p, values, *inputs, example=example).loss[0])
    for example in (0, 4, 8)
  }
  assert len(losses) == 3
