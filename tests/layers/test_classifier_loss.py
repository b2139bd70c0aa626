import numpy as np
import pytest

from tests.layers.run_layer import call
from tfpipe.cost import ArraySpec
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.nested_map import NestedMap

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(6, 9)).astype(np.float32)
LABELS = RNG.integers(0, 9, 6)
WEIGHTS = np.array([1, 0, 2, 0.5, 1, 0], np.float32)


def params(smoothing=0.0):
  return ClassifierLoss.Params().Set(name="loss", label_smoothing=smoothing)


def metrics(tf, logits, labels, weights, smoothing=0.0, dtype="int32"):
  side = NestedMap(label=tf.constant(labels, dtype), weight=tf.constant(weights))
  return call(tf, params(smoothing), {}, tf.constant(logits), side)


def nats(logits, labels, smoothing):
  """Cross-entropy of each example with the smoothed distribution, written out."""
  logits = logits.astype(np.float64)
  classes = logits.shape[1]
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  q = np.full(logits.shape, smoothing / classes)
  q[np.arange(len(labels)), labels] += 1 - smoothing
  return -(q * log_p).sum(1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_loss_is_the_weighted_cross_entropy_with_smoothed_labels(tf, smoothing, dtype):
  total, weight = metrics(tf, LOGITS, LABELS, WEIGHTS, smoothing, dtype).loss
  expected = (WEIGHTS * nats(LOGITS, LABELS, smoothing)).sum()
  assert float(total) == pytest.approx(expected, rel=1e-5)
  assert float(weight) == WEIGHTS.sum()


def test_equal_logits_lose_the_logarithm_of_the_number_of_classes(tf):
  zeros, ones = np.zeros((4, 10), np.float32), np.ones(4, np.float32)
  total, _ = metrics(tf, zeros, [0, 3, 5, 9], ones, 0.1).loss
  assert float(total) == pytest.approx(4 * np.log(10), rel=1e-6)


def test_accuracies_count_weighted_hits_among_the_best(tf):
  # Class c has rank c: the best is 0, the fifth best 4.
  logits = np.tile(np.arange(7, 0, -1, dtype=np.float32), [5, 1])
  weights = np.array([1, 2, 4, 8, 16], np.float32)
  found = metrics(tf, logits, [0, 1, 4, 5, 6], weights)
  assert [float(v) for v in found.accuracy] == [1, 31]
  assert [float(v) for v in found.accuracy_top5] == [1 + 2 + 4, 31]


def test_equal_logits_are_no_hit_for_all_classes(tf):
  zeros, ones = np.zeros((3, 10), np.float32), np.ones(3, np.float32)
  found = metrics(tf, zeros, [0, 4, 5], ones)
  assert float(found.accuracy[0]) == 1
  assert float(found.accuracy_top5[0]) == 2


@pytest.mark.parametrize(("classes", "has_top5"), [(2, False), (5, False), (6, True)])
def test_top5_exists_with_more_than_five_classes(tf, classes, has_top5):
  logits = np.zeros((2, classes), np.float32)
  found = metrics(tf, logits, [0, 1], np.ones(2, np.float32))
  assert ("accuracy_top5" in found) == has_top5
  side = NestedMap(label=ArraySpec((2,), "int32"), weight=ArraySpec((2,)))
  cost = ClassifierLoss.FPropMeta(params(), ArraySpec(logits.shape), side)
  assert list(cost.out_shapes) == list(found)


def test_examples_of_weight_0_change_nothing(tf):
  padded = LOGITS.copy()
  padded[WEIGHTS == 0] *= 100
  found = metrics(tf, padded, LABELS, WEIGHTS, 0.1)
  keep = WEIGHTS > 0
  kept = metrics(tf, LOGITS[keep], LABELS[keep], WEIGHTS[keep], 0.1)
  for name, pair in kept.items():
    np.testing.assert_allclose(found[name], pair, rtol=1e-6)


def test_a_micro_batch_of_weight_0_is_harmless(tf):
  logits = tf.constant(LOGITS)
  side = NestedMap(label=tf.constant(LABELS, "int32"), weight=tf.zeros(6))
  with tf.GradientTape() as tape:
    tape.watch(logits)
    found = call(tf, params(0.1), {}, logits, side)
  np.testing.assert_array_equal(tape.gradient(found.loss[0], logits), LOGITS * 0)
  assert all(float(v) == 0 for pair in found.values() for v in pair)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_smoothed_label(tf, smoothing):
  logits = tf.constant(LOGITS)
  side = NestedMap(label=tf.constant(LABELS, "int32"), weight=tf.constant(WEIGHTS))
  with tf.GradientTape() as tape:
    tape.watch(logits)
    total, _ = call(tf, params(smoothing), {}, logits, side).loss
  softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
  q = np.full(LOGITS.shape, smoothing / 9)
  q[np.arange(6), LABELS] += 1 - smoothing
  expected = WEIGHTS[:, None] * (softmax - q)
  np.testing.assert_allclose(tape.gradient(total, logits), expected, atol=1e-6)


def test_a_label_beyond_the_classes_is_an_error(tf):
  with pytest.raises(tf.errors.InvalidArgumentError):
    metrics(tf, LOGITS, [0, 1, 2, 3, 4, 9], WEIGHTS)


def test_smoothing_outside_0_to_1_is_refused():
  with pytest.raises(ValueError, match=r"label_smoothing = 1\.0"):
    params(1.0).Instantiate()


def test_side_inputs_of_another_batch_are_refused():
  side = NestedMap(label=ArraySpec((3,), "int32"), weight=ArraySpec((2,)))
  with pytest.raises(ValueError, match=r"loss: label has shape \(3,\), expected \(2,"):
    ClassifierLoss.FPropMeta(params(), ArraySpec((2, 9)), side)


@pytest.mark.parametrize("shape", [(2,), (2, 7, 7, 3)])
def test_logits_that_are_no_row_of_classes_are_refused(shape):
  side = NestedMap(label=ArraySpec((2,), "int32"), weight=ArraySpec((2,)))
  with pytest.raises(
    ValueError, match=r"^loss: logits have shape .*\[batch, classes\]$"
  ):
    ClassifierLoss.FPropMeta(params(), ArraySpec(shape), side)
