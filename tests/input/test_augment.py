"""The image functions, against NumPy."""

import numpy as np
import pytest

from tfpipe.input import augment

PICTURE = np.random.default_rng(0).uniform(size=(12, 10, 3)).astype(np.float32)


def seeds(tf, count):
  return [tf.constant([7, i], tf.int64) for i in range(count)]


def test_every_random_function_is_a_pure_function_of_its_seed(tf):
  functions = [
    lambda seed: augment.random_resized_crop(PICTURE, seed, 8),
    lambda seed: augment.random_shift(tf.constant(PICTURE), seed, 3),
    lambda seed: augment.random_flip(PICTURE, seed),
    lambda seed: augment.color_jitter(PICTURE, seed),
    lambda seed: augment.cutout(tf.constant(PICTURE), seed, 4),
  ]
  for function in functions:
    results = set()
    for seed in seeds(tf, 12):
      tf.random.set_seed(len(results))
      result = function(seed).numpy()
      np.testing.assert_array_equal(result, function(seed).numpy())
      results.add(result.tobytes())
    assert len(results) > 1


def test_grey_becomes_equal_channels_in_the_unit_interval(tf):
  grey = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
  unit = augment.to_unit(tf.constant(grey), 3).numpy()
  assert unit.shape == (16, 16, 3)
  np.testing.assert_allclose(unit, np.repeat(grey / 255, 3, axis=2), rtol=1e-6)


def test_normalizing_with_one_half_gives_minus_one_to_one(tf):
  x = augment.normalize(tf.constant([0.0, 0.5, 1.0]), 0.5, 0.5)
  assert x.numpy().tolist() == [-1.0, 0.0, 1.0]


def test_the_central_crop_keeps_a_fraction_of_each_side(tf):
  image = np.zeros((16, 32, 1), np.float32)
  image[1:15, 2:30] = 1.0
  crop = augment.central_crop(tf.constant(image), 0.875).numpy()
  assert crop.shape == (14, 28, 1)
  assert crop.all()


def test_padding_refuses_to_shrink(tf):
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    augment.pad_to(tf.constant(PICTURE), 11)


def test_a_shifted_image_is_a_window_of_the_bordered_one(tf):
  bordered = np.pad(PICTURE, [(2, 2), (2, 2), (0, 0)])
  windows = {
    bordered[i : i + 12, j : j + 10].tobytes(): (i, j)
    for i in range(5)
    for j in range(5)
  }
  places = {
    windows[augment.random_shift(tf.constant(PICTURE), seed, 2).numpy().tobytes()]
    for seed in seeds(tf, 100)
  }
  # 100 draws from 25 places miss a given one with probability 0.017.
  assert len(places) > 20


def test_half_of_the_images_are_mirrored(tf):
  mirrored = 0
  for seed in seeds(tf, 100):
    result = augment.random_flip(PICTURE, seed).numpy()
    same = np.array_equal(result, PICTURE)
    assert same or np.array_equal(result, PICTURE[:, ::-1])
    mirrored += not same
  # Five standard deviations of a fair coin.
  assert abs(mirrored - 50) <= 25


def test_the_color_jitter_is_one_shift_per_channel_within_its_bounds(tf):
  grey = np.full((2, 2, 3), 0.5, np.float32)
  for seed in seeds(tf, 50):
    result = augment.color_jitter(tf.constant(grey), seed).numpy()
    assert np.ptp(result, axis=(0, 1)).max() == 0
    r, g, b = (result[0, 0] - 0.5).astype(float)
    # Solve for brightness and the chroma factors and check their bounds.
    shift, cb, cr = np.linalg.solve(
      [[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]], [r, g, b]
    )
    assert abs(shift) <= 32 / 255 + 1e-6
    assert max(abs(cb), abs(cr)) <= 0.1 + 1e-6
  white = augment.color_jitter(tf.ones((1, 1, 3)), seeds(tf, 1)[0]).numpy()
  assert white.max() <= 1.0


def test_cutout_hides_a_square_that_may_stick_out(tf):
  hidden = set()
  for seed in seeds(tf, 60):
    zero = (augment.cutout(tf.ones((12, 10, 3)), seed, 4).numpy() == 0).all(axis=2)
    rows, columns = zero.any(axis=1), zero.any(axis=0)
    np.testing.assert_array_equal(zero, np.outer(rows, columns))
    assert 1 <= rows.sum() <= 4
    assert 1 <= columns.sum() <= 4
    hidden.add(int(zero.sum()))
  assert max(hidden) == 16
  assert min(hidden) < 16


def test_the_random_crop_of_a_gradient_has_the_stated_area_and_aspect(tf):
  # Pixel values are their coordinates: the corners of the crop tell its size.
  side = 64
  rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
  image = np.stack([rows, columns], axis=2).astype(np.float32)
  for seed in seeds(tf, 60):
    crop = augment.random_resized_crop(tf.constant(image), seed, 256).numpy()
    height = crop[-1, 0, 0] - crop[0, 0, 0] + 1
    width = crop[0, -1, 1] - crop[0, 0, 1] + 1
    # Whole pixels: one pixel more or less in each side.
    assert 0.08 <= height * width / side**2 <= 1.0
    assert 3 / 4 * 0.9 <= width / height <= 4 / 3 * 1.1
