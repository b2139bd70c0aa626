"""Gradients on their way to an update: complete and dense, where their weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.packed import PackedTensors
from tfpipe.spelling import nearest

if TYPE_CHECKING:
  Gradient = tf.Tensor | tf.IndexedSlices | None

# Scalars of the whole model live here, so that their sums don't depend on the layout.
HOST = "/device:CPU:0"


def dense_gradients(
  weights: Mapping[str, tf.Variable], gradients: Mapping[str, Gradient]
) -> Mapping[str, tf.Tensor]:
  """Returns each weight's gradient as a dense float32 tensor on the weight's device.

  Those that are packed are so already, and stay packed.

  Rows that `tf.IndexedSlices` name repeatedly are summed. An optimizer with moments
  changes every row at every update, so a dense gradient costs no more than the update.

  Raises:
    ValueError: a gradient is missing, None, unknown or of another shape.
  """
  for name in gradients:
    if name not in weights:
      raise ValueError(
        f"gradient of an unknown weight {name!r}{nearest(name, weights)}"
      )
  if isinstance(gradients, PackedTensors) and len(gradients) == len(weights):
    return gradients
  dense = {}
  for name, weight in weights.items():
    with tf.device(weight.device):
      dense[name] = _dense(name, weight, gradients.get(name))
  return dense


def _dense(name: str, weight: tf.Variable, gradient: Gradient) -> tf.Tensor:
  if gradient is None:
    raise ValueError(
      f"weight {name!r} has no gradient: the loss doesn't depend on it; leave it out, "
      "or declare it with trainable=False"
    )
  if not weight.shape.is_compatible_with(gradient.shape):
    raise ValueError(
      f"gradient of {name!r} has shape {gradient.shape}, its weight {weight.shape}"
    )
  if isinstance(gradient, tf.IndexedSlices):
    rows = tf.cast(gradient.values, tf.float32)
    return tf.math.unsorted_segment_sum(rows, gradient.indices, weight.shape[0])
  return tf.cast(gradient, tf.float32)
