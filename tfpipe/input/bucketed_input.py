"""Many short texts, one a row, in batches of rows of similar length."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tfpipe.cost import ArraySpec
from tfpipe.input.base import Reader, Rows, permuted
from tfpipe.input.document_input import DocumentInput
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class BucketedTextInput(DocumentInput):
  """A text a row, padded to the shortest of a few lengths that holds it.

  A batch has rows of one length: it is one of `bucket_lengths`, or seq_len. Each has a
  function of its own, so that every shape is static. In training the batches of an
  epoch come in random order, whatever their lengths; in evaluation short ones first.
  Padding has weight 0, and comes after the text, where causal attention does not look.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a bucketed input."""
    p = super().Params()
    p.Define(
      "bucket_lengths",
      (),
      "Lengths of rows shorter than seq_len, ascending, e.g. (32, 64); () for none.",
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p, lengths = params, params.bucket_lengths
    whole = isinstance(lengths, (tuple, list)) and all(type(n) is int for n in lengths)
    if not whole or sorted({0, *lengths, p.seq_len}) != [0, *lengths, p.seq_len]:
      raise ValueError(
        f"{type(self).__name__}.bucket_lengths = {lengths!r}: must be integers of at "
        f"least 1, ascending, all below seq_len = {p.seq_len}"
      )
    self._lengths = np.array([*lengths, p.seq_len], np.int64)

  def all_specs(self) -> list[NestedMap]:
    """Gives the specs of the batches of each length, the longest last."""
    specs, rows = self.specs(), self.params.batch_size
    return [
      NestedMap({k: ArraySpec((rows, int(t)), spec.dtype) for k, spec in specs.items()})
      for t in self._lengths
    ]

  @property
  def num_examples(self) -> int:
    """Texts of an epoch, and pieces of those longer than seq_len.

    Raises:
      ValueError: if there is no character.
      LookupError: if there is no text.
    """
    return len(self._pieces.lengths)

  @functools.cached_property
  def _sizes(self) -> np.ndarray:
    """Counts the texts of each bucket."""
    buckets = np.searchsorted(self._lengths, self._pieces.lengths)
    return np.bincount(buckets, minlength=len(self._lengths))

  @property
  def steps_per_epoch(self) -> int:
    """Batches of an epoch: the sum over lengths of n // rows, or ceil with 'pad'.

    Raises:
      ValueError: if texts of a length fill no batch and would never be seen.
    """
    return int(self._steps.sum())

  @functools.cached_property
  def _steps(self) -> np.ndarray:
    """Counts the batches of each bucket."""
    p, rows = self.params, self.rows_per_step
    if p.last_batch == "pad":
      return -(-self._sizes // rows)
    for length, size in zip(self._lengths, self._sizes, strict=True):
      if 0 < size < rows:
        raise ValueError(
          f"{type(self).__name__}.batch_size = {p.batch_size} by num_shards = "
          f"{p.num_shards}: the {size} texts of bucket {length} fill no batch, and "
          "last_batch = 'drop' would never show them; choose other bucket_lengths, a "
          "smaller batch, or 'pad'"
        )
    return self._sizes // rows

  def _rows(self, step: tf.Tensor, steps: int) -> Rows:
    """Gives the rows of a step, all of one bucket; their ids count by bucket."""
    p, n = self.params, self.num_examples
    epoch = step // steps
    place = step - epoch * steps
    seed = tf.stack([tf.constant(p.seed, tf.int64), epoch])
    if p.shuffle:
      place = permuted(place[tf.newaxis], steps, seed)[0]
    ends = np.cumsum(self._steps)
    bucket = tf.searchsorted(ends, place[tf.newaxis], side="right")[0]
    before, size, first = (
      tf.gather(np.asarray(values, np.int64), bucket)
      for values in (ends - self._steps, self._sizes, _begins(self._sizes))
    )
    begin = (place - before) * self.rows_per_step + p.shard_index * p.batch_size
    slots = begin + tf.range(p.batch_size, dtype=tf.int64)
    ids = positions = tf.minimum(slots, size - 1)
    if p.shuffle:
      own: Any = tf.random.fold_in(seed, tf.cast(bucket, tf.int64))  # pyright: ignore[reportArgumentType] (the stubs know ints only)
      ids = permuted(positions, size, own)
    real = tf.cast(slots < size, tf.float32)
    return Rows(first + ids, real, epoch, epoch * n + first + positions)

  def _reader(self) -> Reader:
    buckets = np.searchsorted(self._lengths, self._pieces.lengths)
    order = np.argsort(buckets, kind="stable")
    with tf.device("CPU:0"):
      stream = tf.constant(self._pieces.stream)
      starts = tf.constant(self._pieces.starts[order])
      lengths = tf.constant(self._pieces.lengths[order])
      times = tf.constant(self._lengths[buckets[order]])

    def read(rows: Rows) -> dict[str, tf.Tensor]:
      start, length = (tf.gather(x, rows.ids)[:, tf.newaxis] for x in (starts, lengths))
      # A shape that is known is known to the dataset too.
      one = len(self._lengths) == 1
      time = self.params.seq_len if one else tf.gather(times, rows.ids[0])
      position = tf.range(time, dtype=tf.int64)
      inside = position < length
      places = start + tf.minimum(position, length - 1)
      return {
        "ids": tf.where(inside, tf.gather(stream, places), 0),
        "labels": tf.where(inside, tf.gather(stream, places + 1), 0),
        "weights": tf.cast(inside, tf.float32) * rows.real[:, tf.newaxis],
      }

    return read


def _begins(sizes: np.ndarray) -> np.ndarray:
  return np.cumsum(sizes) - sizes
