"""Predictions of last layers agree with the metrics of their FProp."""

import numpy as np
import pytest

from models.amoebanet.heads import Classifier, Logits
from tfpipe.layers.base import tracing
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.softmax_loss import SoftmaxLoss
from tfpipe.nested_map import NestedMap

ROWS, TIME, DIM, TOKENS = 4, 3, 5, 7


def theta_of(tf, layer, random):
  return layer.Theta(
    {
      path: tf.constant(random.normal(size=w.shape), tf.float32)
      for path, w in layer.weights().items()
    }
    | {path: tf.zeros([3], tf.int64) for path in layer.seeds()}
  )


def nats(logits, labels):
  """Cross-entropy of each row, and whether its best token is the label."""
  logits = np.asarray(logits, np.float64).reshape(-1, TOKENS)
  norm = np.log(np.exp(logits).sum(axis=1))
  own = logits[np.arange(len(logits)), labels.reshape(-1)]
  return norm - own, logits.argmax(axis=1) == labels.reshape(-1)


@pytest.mark.parametrize("options", [{}, {"tied_to": "embedding/w"}])
@pytest.mark.parametrize("abs_max", [0.0, 0.5])
def test_logits_of_a_text_model_give_its_metrics(tf, options, abs_max):
  random = np.random.default_rng(0)
  p = SoftmaxLoss.Params().Set(
    name="softmax", dim=DIM, vocab_size=TOKENS, logits_abs_max=abs_max, **options
  )
  layer = p.Instantiate()
  theta = theta_of(tf, layer, random)
  x = tf.constant(random.normal(size=[ROWS, TIME, DIM]), tf.float32)
  labels = random.integers(0, TOKENS, size=[ROWS, TIME]).astype(np.int32)
  weights = tf.ones([ROWS, TIME])
  side = NestedMap(labels=tf.constant(labels), weights=weights)
  metrics = layer.FProp(theta, x, side)
  predicted = layer.Predict(theta, x)
  assert list(predicted) == ["logits"]
  assert predicted.logits.shape == (ROWS, TIME, TOKENS)
  assert not abs_max or float(tf.reduce_max(tf.abs(predicted.logits))) == abs_max
  each, hits = nats(predicted.logits, labels)
  assert float(metrics.log_perplexity[0]) == pytest.approx(each.sum(), rel=1e-5)
  assert float(metrics.accuracy[0]) == hits.sum()


@pytest.mark.parametrize("kind", [ClassifierLoss, Classifier])
def test_logits_and_probabilities_of_a_classifier_give_its_metrics(tf, kind):
  random = np.random.default_rng(1)
  p = kind.Params().Set(name="last")
  shape = [ROWS, TOKENS]
  inputs = ()
  if kind is Classifier:
    p.Set(logits=Logits.Params().Set(input_channels=DIM, num_classes=TOKENS))
    p.dropout.keep_prob = 0.5
    shape = [ROWS, 2, 2, DIM]
    inputs = (tf.zeros(shape),)  # that of the cell before the last, which is not read
  layer = p.Instantiate()
  theta = theta_of(tf, layer, random)
  x = tf.constant(random.normal(size=shape), tf.float32)
  labels = random.integers(0, TOKENS, size=[ROWS]).astype(np.int32)
  side = NestedMap(label=tf.constant(labels), weight=tf.ones([ROWS]))
  with tracing(do_eval=True):
    metrics = layer.FProp(theta, x, *inputs, side)
    predicted = layer.Predict(theta, x, *inputs)
  each, hits = nats(predicted.logits, labels)
  assert float(metrics.loss[0]) == pytest.approx(each.sum(), rel=1e-5)
  assert float(metrics.accuracy[0]) == hits.sum()
  chosen = predicted.probabilities.numpy()[np.arange(ROWS), labels]
  assert -np.log(chosen).sum() == pytest.approx(each.sum(), rel=1e-5)
