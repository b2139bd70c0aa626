"""Random numbers that depend on names and examples, never on the layout.

A dropout mask is a pure function of (seed, layer name, step, example): Philox with the
key from (seed, layer name) and the counter from (step, index of the example in the
mini-batch). So the same example meets the same mask for every number of partitions
*and* of micro-batches, and a recomputation draws the mask of its forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.lazy import tf

# A Philox block gives four 32-bit numbers.
_BLOCK = 4
_PHILOX = 1


def uniform(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Draws uniform numbers in [0, 1), row by row from each example's own counter.

  Args:
    seed: int64 [3]: key of (seed, layer name), step, index of the first example.
    shape: static shape, the examples along its first dimension.

  Returns:
    float32 tensor of `shape`.
  """
  rows, size = shape[0], 1
  for dim in shape[1:]:
    size *= dim
  blocks = -(-size // _BLOCK)
  bits = tf.bitcast(seed, tf.uint64)
  counter = tf.stack([bits[2] * tf.constant(blocks, tf.uint64), bits[1]])
  numbers = tf.raw_ops.StatelessRandomUniformV2(
    shape=[rows, blocks * _BLOCK], key=bits[:1], counter=counter, alg=_PHILOX
  )
  return tf.reshape(numbers[:, :size], shape)
