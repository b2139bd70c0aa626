"""Many short texts, such as speeches: packed into rows, or in rows of several lengths.

Each text is predicted from its own characters alone, its first one from id 0.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np

from tfpipe.checks import check_text
from tfpipe.cost import ArraySpec
from tfpipe.input.base import Reader, Rows
from tfpipe.input.packing import pack
from tfpipe.input.text_input import NO_CHARACTER, CharInput, encode
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class Pieces(NamedTuple):
  """Texts of at most seq_len characters each.

  Attributes:
    stream: int32, the ids of all texts, each with id 0 before it.
    starts: int64, place in the stream of the id from which a piece is predicted on.
    lengths: int64, characters that are predicted.
  """

  stream: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray


class DocumentInput(CharInput):
  """Texts that are told apart: what ends one is part of it.

  A text of more than seq_len characters is cut into pieces, which count as texts; all
  but the first are predicted from the last character before them on. So every
  character is predicted exactly once in an epoch, but for what `last_batch` drops.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a document input."""
    p = super().Params()
    p.Define(
      "separator",
      "\n\n",
      "What a text ends with, once or more often, within a file; '' if a file is one.",
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_text(self, params, "separator")

  @functools.cached_property
  def _pieces(self) -> Pieces:
    """Reads and cuts the texts.

    Raises:
      ValueError: if there is no character in them.
    """
    ids, firsts, sizes, total = [], [], [], 0
    for name, text in self._texts().items():
      ends = _ends(text, self.params.separator)
      begins = np.array([0, *ends[:-1]][: len(ends)], np.int64)
      ids.append(np.insert(encode(text, name), begins, NO_CHARACTER))
      firsts.append(total + begins + np.arange(len(ends)))
      sizes.append(np.array(ends, np.int64) - begins)
      total += len(ids[-1])
    starts, lengths = _cut(
      np.concatenate(firsts), np.concatenate(sizes), self.params.seq_len
    )
    if not len(starts):
      raise ValueError(
        f"{type(self).__name__}: split {self.params.split!r} has no character"
      )
    return Pieces(np.concatenate(ids).astype(np.int32), starts, lengths)


class PackedTextInput(DocumentInput):
  """Rows of T ids that hold as many texts as fit.

  Besides ids, labels and weights a batch has `segment_ids`, int32 [B, T]: the number of
  the text in its row, from 1, and 0 for padding; and `positions`, int32 [B, T]: places
  in the text, from 0. A model has to read them, `task.packed=True` for `TransformerLm`.

  Texts share a row for good; what changes from epoch to epoch is the order of rows.
  """

  def specs(self) -> NestedMap:
    """Gives the `ArraySpec`s of ids, labels, weights, segment_ids and positions."""
    specs = super().specs()
    for name in ("segment_ids", "positions"):
      specs[name] = ArraySpec(specs.ids.shape, "int32")
    return specs

  @property
  def num_examples(self) -> int:
    """Rows of an epoch.

    Raises:
      ValueError: if there is no character.
      LookupError: if there is no text.
    """
    return len(self._packed)

  @functools.cached_property
  def _packed(self) -> list[list[int]]:
    return pack(self._pieces.lengths.tolist(), self.params.seq_len)

  def _reader(self) -> Reader:
    shape = (self.params.batch_size, self.params.seq_len)
    order = np.concatenate(self._packed)
    with tf.device("CPU:0"):
      stream = tf.constant(self._pieces.stream)
      starts = tf.constant(self._pieces.starts[order])
      lengths = tf.constant(self._pieces.lengths[order])
      ends = tf.cumsum(tf.constant([0, *map(len, self._packed)], tf.int64))

    def read(rows: Rows) -> dict[str, tf.Tensor]:
      pieces = tf.ragged.range(tf.gather(ends, rows.ids), tf.gather(ends, rows.ids + 1))
      number = tf.ragged.range(pieces.row_lengths()).flat_values + 1
      start, length = (tf.gather(x, pieces.flat_values) for x in (starts, lengths))
      row_lengths = tf.reduce_sum(pieces.with_values(length), axis=1)
      position = tf.ragged.range(length).flat_values
      places = tf.repeat(start, length) + position

      def lay(values: tf.Tensor) -> tf.Tensor:
        by_length = tf.RaggedTensor.from_row_lengths  # pyright: ignore[reportAttributeAccessIssue] (not in the stubs)
        ragged = by_length(values, row_lengths, validate=False)
        return tf.ensure_shape(ragged.to_tensor(shape=shape), shape)

      segment_ids = lay(tf.cast(tf.repeat(number, length), tf.int32))
      weights = tf.cast(segment_ids > 0, tf.float32) * rows.real[:, tf.newaxis]
      return {
        "ids": lay(tf.gather(stream, places)),
        "labels": lay(tf.gather(stream, places + 1)),
        "weights": weights,
        "segment_ids": segment_ids,
        "positions": lay(tf.cast(position, tf.int32)),
      }

    return read


def _ends(text: str, separator: str) -> list[int]:
  """Gives where each document of a text ends."""
  runs = re.finditer(f"(?:{re.escape(separator)})+", text) if separator else ()
  ends = [found.end() for found in runs]
  return ends if not text or (ends and ends[-1] == len(text)) else [*ends, len(text)]


def _cut(
  starts: np.ndarray, lengths: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
  """Cuts what is longer than `most` into pieces."""
  counts = -(-lengths // most)
  first = np.repeat(np.cumsum(counts) - counts, counts)
  place = most * (np.arange(counts.sum()) - first)
  return (
    np.repeat(starts, counts) + place,
    np.minimum(np.repeat(lengths, counts) - place, most),
  )
