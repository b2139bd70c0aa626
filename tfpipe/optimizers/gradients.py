"""Gradients on their way to an update: complete, dense, and measured where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfpipe.lazy import tf
from tfpipe.spelling import nearest

if TYPE_CHECKING:
  Gradient = tf.Tensor | tf.IndexedSlices | None

# Scalars of the whole model live here, so that their sums don't depend on the layout.
HOST = "/device:CPU:0"


def dense_gradients(
  weights: Mapping[str, tf.Variable], gradients: Mapping[str, Gradient]
) -> dict[str, tf.Tensor]:
  """Returns each weight's gradient as a dense float32 tensor on the weight's device.

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
  dense = {}
  for name, weight in weights.items():
    with tf.device(weight.device):
      dense[name] = _dense(name, weight, gradients.get(name))
  return dense


def _dense(name: str, weight: tf.Variable, gradient: Gradient) -> tf.Tensor:
  if gradient is None:
    raise ValueError(
      f"weight {name!r} has no gradient: the loss doesn't depend on it. Leave weights "
      "that aren't trained out of create_state"
    )
  if not weight.shape.is_compatible_with(gradient.shape):
    raise ValueError(
      f"gradient of {name!r} has shape {gradient.shape}, its weight {weight.shape}"
    )
  if isinstance(gradient, tf.IndexedSlices):
    rows = tf.cast(gradient.values, tf.float32)
    return tf.math.unsorted_segment_sum(rows, gradient.indices, weight.shape[0])
  return tf.cast(gradient, tf.float32)


def half_squares(
  weights: Mapping[str, tf.Variable], tensors: Mapping[str, tf.Tensor]
) -> tf.Tensor:
  """Returns `sum(x²)/2` of each tensor, `[len(tensors)]` float32 in their order.

  Each is computed on the device of the weight of the same name. The values of a device
  travel together; neither they nor their order depend on which weights share a device.
  """
  groups: dict[str, list[str]] = {}
  for name in tensors:
    groups.setdefault(weights[name].device, []).append(name)
  parts = []
  for device, names in groups.items():
    with tf.device(device):
      parts.append(tf.stack([tf.nn.l2_loss(tensors[name]) for name in names]))
  arrived = [name for names in groups.values() for name in names]
  places = {name: place for place, name in enumerate(arrived)}
  with tf.device(HOST):
    return tf.gather(tf.concat(parts, axis=0), [places[name] for name in tensors])


def sum_of_halves(halves: tf.Tensor) -> tf.Tensor:
  """Returns the sum of a float32 vector as a float64 scalar, which cannot overflow."""
  return tf.reduce_sum(tf.cast(halves, tf.float64))
