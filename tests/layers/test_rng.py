"""Random numbers are the same wherever and however an example is computed."""

import numpy as np
import pytest

from tfpipe.layers import rng

KEY = 0x1234_5678_9ABC_DEF


def draw(tf, shape, *, key=KEY, step=3, first=0, xla=False):
  def numbers(seed):
    return rng.uniform(seed, shape)

  seed = tf.constant([key, step, first], tf.int64)
  return tf.function(numbers, autograph=False, jit_compile=xla or None)(seed).numpy()


def reference(shape, *, key=KEY, step=3, first=0):
  """The two published hashes, in Python integers, a number at a time."""

  def mix(word, rounds, bits):
    for shift, factor in rounds:
      word ^= word >> shift
      word = word * factor % 2**bits
    return word

  numbers = []
  for row in range(shape[0]):
    word = (first + row) * 0x9E3779B97F4A7C15 + key + step * 0xD1B54A32D192ED03
    word = mix(
      word % 2**64, [(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)], 64
    )
    low, high = word % 2**32, word >> 32
    for column in range(int(np.prod(shape[1:]))):
      number = mix((column * 0x9E3779B9 + low) % 2**32, [(16, 0x85EBCA6B)], 32)
      number = mix(number ^ high, [(13, 0xC2B2AE35), (16, 1)], 32)
      numbers.append((number >> 8) / 2**24)
  return np.array(numbers, np.float32).reshape(shape)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (4, 1), (5,)])
def test_numbers_are_those_of_the_published_hashes(tf, shape):
  expected = reference(shape, first=6)
  np.testing.assert_array_equal(draw(tf, shape, first=6), expected)


def test_a_compiler_does_not_change_them(tf):
  np.testing.assert_array_equal(draw(tf, (8, 33)), draw(tf, (8, 33), xla=True))


@pytest.mark.parametrize("num_micro_batches", [2, 4, 8])
def test_micro_batches_hold_what_the_whole_batch_would(tf, num_micro_batches):
  rows = 8 // num_micro_batches
  parts = [draw(tf, (rows, 7), first=m * rows) for m in range(num_micro_batches)]
  np.testing.assert_array_equal(np.concatenate(parts), draw(tf, (8, 7)))


def test_layers_steps_and_examples_differ_at_any_step(tf):
  # float32 holds no odd integers from 2^24 on: a seed carried as one would repeat.
  for step in (0, 2**24, 5_000_000 * 4):
    rows = [
      draw(tf, (4, 64), step=step + i, key=KEY + j) for i in (0, 1) for j in (0, 1)
    ]
    assert len(np.unique(np.concatenate(rows), axis=0)) == 16


def test_numbers_are_uniform_and_independent(tf):
  x = draw(tf, (64, 4096)).astype(np.float64)
  n = x.size
  assert x.min() >= 0
  assert x.max() < 1
  # Five standard deviations each, from the moments of the uniform distribution.
  assert abs(x.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / n)
  assert abs(x.var() - 1 / 12) < 5 * np.sqrt((1 / 80 - 1 / 144) / n)
  counts, _ = np.histogram(x, 64, (0, 1))
  chi_squared = np.sum((counts - n / 64) ** 2 / (n / 64))
  assert abs(chi_squared - 63) < 5 * np.sqrt(2 * 63)
  centred = x - 0.5
  for lag in (1, 2, 64):
    products = centred[:, lag:] * centred[:, :-lag]
    assert abs(products.mean()) < 5 / 12 / np.sqrt(products.size)
  between_rows = (centred[1:] * centred[:-1]).mean()
  assert abs(between_rows) < 5 / 12 / np.sqrt(63 * 4096)
