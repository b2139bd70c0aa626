"""Batches of images: the shipped Fashion-MNIST, and synthetic ones of any size.

A batch is {'image': float32 [B, S, S, C], 'label': int32 [B], 'weight': float32 [B]}.
"""

from __future__ import annotations

import numpy as np

from tfpipe.checks import check_bool, check_choice, check_count, check_number
from tfpipe.cost import ArraySpec
from tfpipe.input import augment, embedded
from tfpipe.input.base import Input, Reader, Rows
from tfpipe.input.synthetic import SyntheticInput
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class ImageInput(Input):
  """Square images with one label each."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of an image input."""
    p = super().Params()
    p.Define("image_size", 28, "Side S of the images, in pixels.")
    p.Define("channels", 1, "Channels C: 1 (grey) or 3 (RGB).")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "image_size", 1)
    check_choice(self, params, "channels", (1, 3))

  def specs(self) -> NestedMap:
    """Gives the `ArraySpec`s of image, label and weight."""
    p = self.params
    return NestedMap(
      image=ArraySpec((p.batch_size, p.image_size, p.image_size, p.channels)),
      label=ArraySpec((p.batch_size,), "int32"),
      weight=ArraySpec((p.batch_size,)),
    )


class AugmentedImageInput(ImageInput):
  """Images prepared one by one, with randomness in training.

  In order: random_resized_crop, or central_crop and fit; then random_crop_padding,
  random_flip, color_jitter; then scaling by mean and std; then cutout. What is random
  needs shuffle=True, that is, training.
  """

  TRAINING_ONLY = (
    "random_resized_crop",
    "random_crop_padding",
    "random_flip",
    "color_jitter",
    "cutout",
  )

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; by default nothing is random and values are in [-1, 1]."""
    p = super().Params()
    p.Define("mean", 0.5, "Subtracted from the values, which lie in [0, 1] ...")
    p.Define("std", 0.5, "... and what the difference is divided by.")
    p.Define(
      "fit",
      "resize",
      "How an image comes to image_size: 'resize' (bilinear) or 'pad' (with black).",
    )
    p.Define("central_crop", 1.0, "Fraction of each side that is kept before fitting.")
    p.Define(
      "random_resized_crop", False, "Cut out 10-100 % of the area and resize it."
    )
    p.Define(
      "random_crop_padding", 0, "Shift the image by up to so many pixels, both ways."
    )
    p.Define("random_flip", False, "Mirror left and right in half of the cases.")
    p.Define("color_jitter", False, "Change brightness and chroma (RGB only).")
    p.Define("cutout", 0, "Hide a square of this side; 0 hides nothing.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_number(self, params, "mean", "(-inf, inf)")
    check_number(self, params, "std", "(0, inf)")
    check_choice(self, params, "fit", ("resize", "pad"))
    check_number(self, params, "central_crop", "(0, 1]")
    for key in ("random_resized_crop", "random_flip", "color_jitter"):
      check_bool(self, params, key)
    check_count(self, params, "random_crop_padding", 0, params.image_size - 1)
    check_count(self, params, "cutout", 0, params.image_size)
    self._check_together()

  def _check_together(self) -> None:
    """Refuses options that contradict each other."""
    p, owner = self.params, type(self).__name__
    on = [key for key in self.TRAINING_ONLY if p.Get(key)]
    if on and not p.shuffle:
      raise ValueError(
        f"{owner}.{on[0]} = {p.Get(on[0])} is random and for training, but shuffle is "
        "False; switch one of them"
      )
    if p.random_resized_crop and (p.central_crop < 1 or p.fit == "pad"):
      raise ValueError(
        f"{owner}.random_resized_crop replaces central_crop (here {p.central_crop}) "
        f"and fit (here {p.fit!r}); leave these at 1.0 and 'resize'"
      )
    if p.color_jitter and p.channels != 3:
      raise ValueError(f"{owner}.color_jitter needs channels = 3; got {p.channels}")

  def _prepare(self, image: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """Makes a float32 [S, S, C] out of a uint8 [height, width, 1 or C]."""
    p = self.params
    seeds = augment.split_seed(
      tf.stack([tf.constant(p.seed, tf.int64), counter]), len(self.TRAINING_ONLY)
    )
    x = augment.to_unit(image, p.channels)
    if p.random_resized_crop:
      x = augment.random_resized_crop(x, seeds[0], p.image_size)
    else:
      x = self._fit(x)
    x = tf.ensure_shape(x, [p.image_size, p.image_size, p.channels])
    if p.random_crop_padding:
      x = augment.random_shift(x, seeds[1], p.random_crop_padding)
    if p.random_flip:
      x = augment.random_flip(x, seeds[2])
    if p.color_jitter:
      x = augment.color_jitter(x, seeds[3])
    x = augment.normalize(x, p.mean, p.std)
    if p.cutout:
      x = augment.cutout(x, seeds[4], p.cutout)
    return x

  def _fit(self, x: tf.Tensor) -> tf.Tensor:
    p = self.params
    if p.central_crop < 1:
      x = augment.central_crop(x, p.central_crop)
    return (augment.pad_to if p.fit == "pad" else augment.resize)(x, p.image_size)


class EmbeddedImageInput(AugmentedImageInput):
  """The shipped part of Fashion-MNIST: 2,000 examples to train on, 500 to test."""

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_choice(self, params, "split", embedded.SPLITS)
    side = embedded.FASHION_MNIST_SIDE
    if params.fit == "pad" and params.image_size < side * params.central_crop:
      raise ValueError(
        f"EmbeddedImageInput.image_size = {params.image_size} is less than the "
        f"{side} pixels of the images; fit 'pad' cannot shrink them, 'resize' can"
      )

  @property
  def num_classes(self) -> int:
    """Labels are in [0, num_classes)."""
    return embedded.FASHION_MNIST_CLASSES

  @property
  def num_examples(self) -> int:
    """Examples of the split."""
    return embedded.FASHION_MNIST_SIZES[self.params.split]

  def check_data(self) -> None:
    """Reads the shipped file; see `Input.check_data`."""
    super().check_data()
    embedded.fashion_mnist(self.params.split)

  def _reader(self) -> Reader:
    pixels, classes = embedded.fashion_mnist(self.params.split)
    with tf.device("CPU:0"):
      images = tf.constant(pixels[..., np.newaxis])
      labels = tf.constant(classes, tf.int32)

    def read(rows: Rows) -> dict[str, tf.Tensor]:
      image = tf.map_fn(
        lambda row: self._prepare(*row),
        (tf.gather(images, rows.ids), rows.counters),
        fn_output_signature=tf.float32,
      )
      label = tf.gather(labels, rows.ids)
      return {"image": image, "label": label, "weight": rows.real}

    return read


class SyntheticImageInput(SyntheticInput, ImageInput):
  """Noise with random labels, at any size, for benchmarks; a function of the seed.

  Example i of a split is a window into one long row of normal noise, i values from its
  start: different for each i, and made by a copy, so that the input is never what a
  benchmark measures.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a synthetic image input."""
    p = super().Params()
    p.Define("num_classes", 10, "Labels are in [0, num_classes).")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "num_classes", 1)

  @property
  def num_classes(self) -> int:
    """Labels are in [0, num_classes)."""
    return self.params.num_classes

  def _reader(self) -> Reader:
    p, random = self.params, self._random()
    size = p.image_size**2 * p.channels
    with tf.device("CPU:0"):
      labels = tf.constant(
        random.integers(p.num_classes, size=p.num_examples), tf.int32
      )
      noise = tf.constant(
        random.standard_normal(size + p.num_examples - 1, dtype=np.float32)
      )

    def read(rows: Rows) -> dict[str, tf.Tensor]:
      image = tf.map_fn(
        lambda i: tf.reshape(noise[i : i + size], self.specs().image.shape[1:]),
        rows.ids,
        fn_output_signature=tf.float32,
      )
      label = tf.gather(labels, rows.ids)
      return {"image": image, "label": label, "weight": rows.real}

    return read
