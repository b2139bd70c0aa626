"""Softmax cross-entropy of a classifier and its metrics."""

from __future__ import annotations

from typing import Any

from tfpipe.checks import check_number
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers.base import Layer
from tfpipe.layers.softmax_loss import cross_entropy
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

_TOP = 5


class ClassifierLoss(Layer):
  """Cross-entropy with smoothed labels, and how often the label is among the best.

  `FProp(theta, logits, side)`: logits [batch, classes]; side fields `label`, integers
  [batch] below classes, and `weight`, float32 [batch]. Gives the metrics `loss` (nats),
  `accuracy` and, with more than 5 classes, `accuracy_top5`, each as (sum over examples
  of weight · value, sum of weights).
  """

  SIDE_INPUTS = ("label", "weight")

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define(
      "label_smoothing", 0.0, "Part of a label that is spread evenly over all classes."
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_number(self, params, "label_smoothing", "[0, 1)")

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Computes the metrics."""
    logits, side = inputs
    metrics = NestedMap(loss=self.loss(logits, side))
    # Of equal logits the lower class is the better one, for both metrics.
    num_best = _num_best(logits.shape[1])
    best = tf.math.top_k(logits, num_best).indices
    hits = best == tf.cast(side.label, best.dtype)[:, None]
    metrics.accuracy = _weighted(tf.cast(hits[:, 0], tf.float32), side.weight)
    if num_best > 1:
      hit = tf.cast(tf.reduce_any(hits, 1), tf.float32)
      metrics.accuracy_top5 = _weighted(hit, side.weight)
    return metrics

  def Predict(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Gives `logits` and `probabilities`, float32 [batch, classes]."""
    logits = tf.cast(inputs[0], tf.float32)
    return NestedMap(logits=logits, probabilities=tf.nn.softmax(logits))

  def loss(self, logits: tf.Tensor, side: NestedMap) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the metric `loss` alone."""
    best = tf.argmax(logits, 1, output_type=side.label.dtype)
    nats, _ = cross_entropy(logits, side.label, best, self.params.label_smoothing)
    return _weighted(nats, side.weight)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost."""
    logits, side = inputs
    if len(logits.shape) != 2:
      raise ValueError(
        f"{params.name}: logits have shape {logits.shape}, expected [batch, classes]"
      )
    batch, classes = logits.shape
    for name in cls.SIDE_INPUTS:
      if side[name].shape != (batch,):
        raise ValueError(
          f"{params.name}: {name} has shape {side[name].shape}, expected ({batch},)"
        )
    num_best = _num_best(classes)
    names = ["loss", "accuracy", "accuracy_top5"][: 2 + (num_best > 1)]
    per_logit, per_example = (8, 6) if params.label_smoothing else (6, 2)
    per_example += num_best + 3 * len(names)
    pair = (ArraySpec(()), ArraySpec(()))
    return cls.Cost(
      params,
      NestedMap(dict.fromkeys(names, pair)),
      flops=per_logit * logits.size + per_example * batch - 2 * len(names),
      # Where the labels' logits are.
      activation_bytes=8 * batch,
    )


def _num_best(classes: int) -> int:
  return _TOP if classes > _TOP else 1


def _weighted(values: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  return tf.reduce_sum(values * weight), tf.reduce_sum(weight)
