"""Random numbers that depend on names and examples, never on the layout.

A dropout mask is a pure function of (seed, layer name, step, example), made of integer
operations alone: counters are hashed. So an example meets the same mask for every
number of partitions *and* of micro-batches, in a recomputation as in its forward, and
with every compiler and device (TensorFlow's own stateless generators give other numbers
under XLA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfpipe.lazy import tf

# Odd constants and rounds (shift, factor) of SplitMix64 (Steele et al., 2014) for the
# examples and of MurmurHash3's 32-bit finalizer for the numbers of an example.
_EXAMPLE, _STEP = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
_MIX_EXAMPLE = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_NUMBER = 0x9E3779B9
_MIX_NUMBER = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


def uniform(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Draws uniform numbers in [0, 1), row by row for each example.

  Args:
    seed: int64 [3]: key of (seed, layer name), step, index of the first example.
    shape: static shape, the examples along its first dimension.

  Returns:
    float32 tensor of `shape`.
  """
  low, high = tf.unstack(_row_words(seed, shape[0]), axis=1)
  counters = tf.range(math.prod(shape[1:]), dtype=tf.int64) * _NUMBER
  word = tf.cast(counters, tf.uint32)[None] + low[:, None]
  word = _mix(word, _MIX_NUMBER[:1]) ^ high[:, None]
  word = _mix(word, _MIX_NUMBER[1:])
  # 24 bits fill the mantissa of a float32.
  fraction = tf.bitwise.right_shift(word, tf.constant(8, tf.uint32))
  return tf.reshape(tf.cast(fraction, tf.float32) * 2.0**-24, shape)


def uniform_flops(shape: Sequence[int]) -> int:
  """Gives the additions and products of `uniform`, as the profiler counts them."""
  rows, size = shape[0], math.prod(shape[1:])
  return 5 * rows + 2 + size + 4 * rows * size


def _row_words(seed: tf.Tensor, rows: int) -> tf.Tensor:
  """Hashes (key, step, example) of each row: uint32 [rows, 2]."""
  key, step, first = tf.unstack(tf.bitcast(seed, tf.uint64))
  examples = tf.cast(tf.range(rows), tf.uint64) + first
  word = examples * tf.constant(_EXAMPLE, tf.uint64)
  word += key + step * tf.constant(_STEP, tf.uint64)
  return tf.bitcast(_mix(word, _MIX_EXAMPLE), tf.uint32)


def _mix(word: tf.Tensor, rounds: Sequence[tuple[int, int]]) -> tf.Tensor:
  for shift, factor in rounds:
    word ^= tf.bitwise.right_shift(word, tf.constant(shift, word.dtype))
    if factor != 1:
      word *= tf.constant(factor, word.dtype)
  return word
