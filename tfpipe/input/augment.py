"""Preparation of one image: crops, flips, colours, all stateless.

Each random function takes a seed, an int64 tensor [2], and is a pure function of it, so
that a resumed run sees the same images. The random crop, the colour jitter and the
central crop are those of the TPU AmoebaNet preprocessing.

Images are [height, width, channels], with values in [0, 1] between `to_unit` and
`normalize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfpipe.lazy import tf

CROP_AREA = (0.1, 1.0)
CROP_ASPECT = (3 / 4, 4 / 3)
CROP_ATTEMPTS = 100
MAX_BRIGHTNESS = 32 / 255
MAX_CHROMA = 0.1


def to_unit(image: tf.Tensor, channels: int) -> tf.Tensor:
  """Scales uint8 to float32 in [0, 1]; a grey image may become three equal channels."""
  unit = tf.cast(image, tf.float32) / 255.0
  if unit.shape[-1] == 1 and channels > 1:
    unit = tf.repeat(unit, channels, axis=-1)
  return unit


def central_crop(image: tf.Tensor, fraction: float) -> tf.Tensor:
  """Keeps the middle `fraction` of each side."""
  return tf.image.central_crop(image, fraction)


def resize(image: tf.Tensor, size: int) -> tf.Tensor:
  """Resizes to [size, size, channels], bilinear; the aspect ratio is not kept."""
  return tf.image.resize(image, [size, size], method="bilinear")


def pad_to(image: tf.Tensor, size: int) -> tf.Tensor:
  """Puts the image in the middle of a black square of side `size`.

  Raises:
    InvalidArgumentError: when run, if the image is larger than that.
  """
  height, width = tf.shape(image)[0], tf.shape(image)[1]
  top, left = (size - height) // 2, (size - width) // 2
  return tf.image.pad_to_bounding_box(image, top, left, size, size)


def random_resized_crop(image: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
  """Cuts out 10 to 100 % of the area at an aspect of 3/4 to 4/3, and resizes it."""
  begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
    tf.shape(image),
    bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
    seed=seed,
    min_object_covered=CROP_AREA[0],
    aspect_ratio_range=CROP_ASPECT,
    area_range=CROP_AREA,
    max_attempts=CROP_ATTEMPTS,
  )
  return resize(tf.slice(image, begin, extent), size)


def random_shift(image: tf.Tensor, seed: tf.Tensor, padding: int) -> tf.Tensor:
  """Pads each side by `padding` black pixels and cuts the old size out anywhere."""
  height, width, channels = image.shape
  bordered = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
  corner = tf.random.stateless_uniform(
    [2], seed, minval=0, maxval=2 * padding + 1, dtype=tf.int32
  )
  begin = tf.concat([corner, [0]], axis=0)
  return tf.slice(bordered, begin, [height, width, channels])


def random_flip(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Mirrors left and right in half of the cases."""
  return tf.image.stateless_random_flip_left_right(image, seed)


def color_jitter(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Shifts brightness, and scales the YCbCr chroma back into an RGB image.

  b is uniform in ±32/255, cb and cr in ±0.1:
  R += 1.402 cr + b, G += -0.344136 cb - 0.714136 cr + b, B += 1.772 cb + b.
  """
  b, cb, cr = tf.unstack(
    tf.random.stateless_uniform([3], seed, minval=-1.0, maxval=1.0)
  )
  b, cb, cr = MAX_BRIGHTNESS * b, MAX_CHROMA * cb, MAX_CHROMA * cr
  shift = tf.stack([1.402 * cr + b, -0.344136 * cb - 0.714136 * cr + b, 1.772 * cb + b])
  return tf.clip_by_value(image + shift, 0.0, 1.0)


def normalize(image: tf.Tensor, mean: float, std: float) -> tf.Tensor:
  """Gives (image - mean) / std; 0.5 and 0.5 map [0, 1] to [-1, 1]."""
  return (image - mean) / std


def cutout(image: tf.Tensor, seed: tf.Tensor, size: int) -> tf.Tensor:
  """Sets a square to 0 (the mean, after `normalize`), its centre on any pixel.

  The square may stick out of the image (DeVries and Taylor, arXiv:1708.04552, section
  3.1), so fewer than size² pixels may be hidden.
  """
  centre = tf.random.stateless_uniform([2], seed, dtype=tf.float32)
  rows = _inside(centre[0], image.shape[0], size)[:, tf.newaxis, tf.newaxis]
  columns = _inside(centre[1], image.shape[1], size)[tf.newaxis, :, tf.newaxis]
  return tf.where(tf.logical_and(rows, columns), 0.0, image)


def split_seed(seed: tf.Tensor, num: int) -> Sequence[tf.Tensor]:
  """Gives `num` independent seeds made from one."""
  return tf.unstack(tf.random.split(seed, num))


def _inside(centre: tf.Tensor, side: Any, size: int) -> tf.Tensor:
  """Tells which of `side` pixels lie in the span of `size`; centre is in [0, 1)."""
  start = tf.cast(centre * side, tf.int32) - size // 2
  pixels = tf.range(side)
  return tf.logical_and(pixels >= start, pixels < start + size)
