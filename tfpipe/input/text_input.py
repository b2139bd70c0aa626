"""Batches of text for language models, by character, and synthetic ones of any size.

A batch is {'ids': int32 [B, T], 'labels': int32 [B, T], 'weights': float32 [B, T]}:
`labels` are the ids one place to the left, and the weight is 0 where there is nothing
to predict.

The vocabulary is fixed: id 0 stands for no character (before the first one of a text,
and for padding), 1 for the newline, 2 to 96 for the printable ASCII characters from the
space to the tilde.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tfpipe import text_files
from tfpipe.checks import check_choice, check_count, check_text
from tfpipe.cost import ArraySpec
from tfpipe.input import embedded
from tfpipe.input.base import Input, Reader, Rows
from tfpipe.input.synthetic import SyntheticInput
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

NO_CHARACTER = 0
ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
VOCAB_SIZE = 1 + len(ALPHABET)


def encode(text: str, source: str) -> np.ndarray:
  """Gives the ids of a text's characters, int32 [len(text)].

  Args:
    text: the text.
    source: what the error calls it.

  Raises:
    ValueError: if a character is not in the vocabulary.
  """
  codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int32)
  known = (codes == ord("\n")) | ((codes >= ord(" ")) & (codes <= ord("~")))
  if not known.all():
    place = int(np.argmin(known))
    raise ValueError(
      f"{source}: character {text[place]!r} at {place} is not in the vocabulary, which "
      "is the newline and printable ASCII"
    )
  return np.where(codes == ord("\n"), 1, codes - ord(" ") + 2)


def decode(ids: Iterable[int]) -> str:
  """Gives the text of ids; id 0 gives nothing."""
  return "".join(ALPHABET[i - 1] for i in ids if i != NO_CHARACTER)


class TextInput(Input):
  """Windows of T ids, each with the id that follows as its label."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a text input."""
    p = super().Params()
    p.Define("seq_len", 128, "Ids of a row, T.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "seq_len", 1)

  @property
  def vocab_size(self) -> int:
    """Ids are in [0, vocab_size)."""
    raise NotImplementedError(f"{type(self).__name__} defines no vocab_size")

  def specs(self) -> NestedMap:
    """Gives the `ArraySpec`s of ids, labels and weights."""
    shape = (self.params.batch_size, self.params.seq_len)
    return NestedMap(
      ids=ArraySpec(shape, "int32"),
      labels=ArraySpec(shape, "int32"),
      weights=ArraySpec(shape),
    )

  def _cut(self, stream: tf.Tensor, starts: tf.Tensor, real: tf.Tensor) -> dict:
    """Cuts a window of T + 1 ids at each start; rows that are not real weigh 0."""
    places = tf.range(self.params.seq_len + 1, dtype=tf.int64)
    windows = tf.gather(stream, starts[:, tf.newaxis] + places)
    labels = windows[:, 1:]
    weights = tf.cast(labels != NO_CHARACTER, tf.float32) * real[:, tf.newaxis]
    return {"ids": windows[:, :-1], "labels": labels, "weights": weights}


class CharInput(TextInput):
  """Plays by Shakespeare, or one's own texts, by character."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a character input."""
    p = super().Params()
    p.Define(
      "text_dir",
      "",
      "Folder whose sub-folders, named as the splits, hold *.txt files, for example "
      "data_dir/shakespeare of tools.prepare_data; '' for the shipped plays.",
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_text(self, params, "text_dir")
    if not params.text_dir:
      check_choice(self, params, "split", embedded.SPLITS)

  @property
  def vocab_size(self) -> int:
    """Ids are in [0, vocab_size)."""
    return VOCAB_SIZE

  @classmethod
  def encode_text(cls, text: str, source: str) -> np.ndarray:
    """Gives the ids of a text; see `encode`."""
    return encode(text, source)

  @classmethod
  def decode_ids(cls, ids: Iterable[int]) -> str:
    """Gives the text of ids; see `decode`."""
    return decode(ids)

  def _texts(self) -> dict[str, str]:
    """Reads the texts of the split, by the name that errors call each."""
    if not self.params.text_dir:
      return embedded.shakespeare(self.params.split)
    owner = f"{type(self).__name__}.text_dir"
    text_dir = self.params.text_dir
    folder = text_files.home(text_dir, f"{owner} = {text_dir!r}") / self.params.split
    paths = sorted(path for path in folder.glob("*.txt") if path.is_file())
    if not paths:
      raise LookupError(
        f"{owner}: no *.txt in {folder}; Shakespeare's works come there "
        "by python -m tools.prepare_data --dataset=shakespeare --source=auto "
        f"--data_dir=DIR with text_dir = DIR/shakespeare"
      )
    return {str(path): _read(path, owner) for path in paths}


class CharTextInput(CharInput):
  """Texts as one stream, cut into windows.

  All texts of a split form one stream, each with id 0 before it. In evaluation
  (shuffle=False) example i is window i of the stream, so that every character is
  predicted exactly once, the first of a window from one character before it; the last
  window is padded. In training (shuffle=True) the windows of an epoch start at a random
  offset in [0, T) and up to 2T - 1 characters are left out.
  """

  @property
  def num_examples(self) -> int:
    """Windows of an epoch.

    Raises:
      ValueError: if the text is too short for one.
      LookupError: if there is no text.
    """
    length, t = len(self._stream), self.params.seq_len
    n = (length - t) // t if self.params.shuffle else -(-(length - 1) // t)
    if n < 1:
      raise ValueError(
        f"CharTextInput.seq_len = {t} is too long: split {self.params.split!r} has "
        f"{length - 1} characters, and training needs twice seq_len"
      )
    return n

  @functools.cached_property
  def _stream(self) -> np.ndarray:
    parts = []
    for name, text in self._texts().items():
      parts += [np.array([NO_CHARACTER]), encode(text, name)]
    return np.concatenate(parts).astype(np.int32)

  def _reader(self) -> Reader:
    p, t = self.params, self.params.seq_len
    end = self.num_examples * t + 1
    with tf.device("CPU:0"):
      padded = np.pad(self._stream, (0, max(0, end - len(self._stream))))
      stream = tf.constant(padded)

    def read(rows: Rows) -> dict[str, tf.Tensor]:
      starts = rows.ids * t
      if p.shuffle:
        seed = tf.stack([tf.constant(p.seed, tf.int64), rows.epoch])
        starts += tf.random.stateless_uniform(
          [], seed, minval=0, maxval=t, dtype=tf.int64
        )
      return self._cut(stream, starts, rows.real)

    return read


class SyntheticTextInput(SyntheticInput, TextInput):
  """Random ids without padding, at any size, for benchmarks; a function of the seed.

  Example i of a split is the window that starts at place i of one row of random ids.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a synthetic text input."""
    p = super().Params()
    p.Define("vocab_size", 1024, "Ids are in [1, vocab_size).")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "vocab_size", 2)

  @property
  def vocab_size(self) -> int:
    """Ids are in [1, vocab_size)."""
    return self.params.vocab_size

  def _reader(self) -> Reader:
    p = self.params
    row = self._random().integers(1, p.vocab_size, size=p.num_examples + p.seq_len)
    with tf.device("CPU:0"):
      stream = tf.constant(row, tf.int32)
    return lambda rows: self._cut(stream, rows.ids, rows.real)


def _read(path: Path, owner: str) -> str:
  try:
    return path.read_text(encoding="utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(f"{owner}: {path} is not UTF-8: {error}") from error
