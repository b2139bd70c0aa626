"""Texts packed into rows: each predicted whole and alone, little padding, pure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.input.test_text_input import run, text_folder
from tfpipe.input import embedded
from tfpipe.input.document_input import PackedTextInput
from tfpipe.input.packing import pack
from tfpipe.input.text_input import decode, encode

FILES = ["one.\n\nthree\n\n\nx", "\n\nab\n\n", "z" * 23]
# What ends a text is part of it; 23 letters are three pieces of 9, 9 and 5.
TEXTS = ["one.\n\n", "three\n\n", "\nx", "\n\n", "ab\n\n", "z" * 9, "z" * 9, "z" * 5]


def packed(folder, **changes):
  settings = {"batch_size": 2, "seq_len": 9, "text_dir": folder, **changes}
  return PackedTextInput.EvalParams().Set(**settings).Instantiate()


def training(**changes):
  settings = {"batch_size": 8, "seq_len": 128, **changes}
  return PackedTextInput.Params().Set(**settings).Instantiate()


def segments(batch):
  """Yields ids, labels and positions of each text of a batch."""
  names = ("ids", "labels", "weights", "segment_ids", "positions")
  for row in zip(*(batch[name] for name in names), strict=True):
    ids, labels, weights, numbers, positions = row
    assert set(weights[numbers == 0]) <= {0}
    for number in range(1, numbers.max() + 1):
      own = numbers == number
      # One stretch, in order.
      assert np.flatnonzero(np.diff(np.flatnonzero(own)) != 1).size == 0
      if weights[own].all():
        yield ids[own], labels[own], positions[own]
      else:
        assert not weights.any()


def test_every_text_is_there_once_and_alone(tf, tmp_path):
  folder = text_folder(tmp_path, test=FILES)
  found = []
  for batch in run(packed(folder)):
    for ids, labels, positions in segments(batch):
      text = decode(labels)
      # The first id is 0, or the last character before a piece.
      assert decode(ids) in (text[:-1], f"z{text[:-1]}")
      assert positions.tolist() == list(range(len(text)))
      found.append(text)
  assert sorted(found) == sorted(TEXTS)


def test_fields_of_one_row_are_as_laid_out(tf, tmp_path):
  folder = text_folder(tmp_path, test=["abc--d--"])
  (batch,) = run(packed(folder, batch_size=1, separator="--"))
  first, second = encode("abc--", "").tolist(), encode("d--", "").tolist()
  assert batch["ids"].tolist() == [[0, *first[:-1], 0, *second[:-1], 0]]
  assert batch["labels"].tolist() == [[*first, *second, 0]]
  assert batch["weights"].tolist() == [[1] * 8 + [0]]
  assert batch["segment_ids"].tolist() == [[1] * 5 + [2] * 3 + [0]]
  assert batch["positions"].tolist() == [[*range(5), *range(3), 0]]


def test_rows_that_only_fill_a_batch_weigh_nothing(tf, tmp_path):
  source = packed(text_folder(tmp_path, test=FILES), batch_size=4)
  batches = run(source)
  assert source.num_examples == 5
  assert [b["weights"].any(axis=1).tolist() for b in batches] == [
    [True] * 4,
    [True, False, False, False],
  ]


@pytest.mark.parametrize("separator", ["\n\n", ""])
def test_each_character_of_the_held_out_play_is_predicted_once(tf, separator):
  p = PackedTextInput.EvalParams()
  p.Set(batch_size=32, seq_len=128, separator=separator)
  batches = run(p.Instantiate())
  text = embedded.shakespeare("test")["macbeth"]
  total = sum(batch["weights"].sum() for batch in batches)
  assert total == len(text)
  counts = np.zeros(97, int)
  for batch in batches:
    np.add.at(counts, batch["labels"][batch["weights"] > 0], 1)
  np.testing.assert_array_equal(counts, np.bincount(encode(text, ""), minlength=97))


def test_little_of_the_speeches_rows_is_padding(tf):
  source = training()
  batches = run(source, 0, source.steps_per_epoch)
  assert np.mean([batch["weights"].mean() for batch in batches]) > 0.99
  # As one speech a row it would be less than half.
  texts = sum(batch["segment_ids"].max(axis=1).sum() for batch in batches)
  assert texts > 1.5 * 8 * len(batches)


@pytest.mark.parametrize("start", [1, 270, 10**6])
def test_training_resumes_exactly(tf, start):
  source = training()
  first = max(0, start - 2)
  whole = run(source, first, 4)
  for a, b in zip(whole[start - first :], run(source, start, 2), strict=False):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_epochs_have_different_orders_of_the_same_rows(tf):
  source = training(batch_size=16)
  steps = source.steps_per_epoch
  epochs = [
    np.concatenate([b["labels"] for b in run(source, i * steps, steps)]) for i in (0, 1)
  ]
  assert not np.array_equal(*epochs)
  same = {row.tobytes() for row in epochs[0]} & {row.tobytes() for row in epochs[1]}
  # Less than a batch of rows is left out of each.
  assert len(same) > len(epochs[0]) - 32


@given(
  size=st.integers(1, 12),
  shares=st.lists(st.floats(0, 1, exclude_max=True), max_size=40),
)
def test_packing_loses_nothing_and_fits(size, shares):
  lengths = [1 + int(share * size) for share in shares]
  rows = pack(lengths, size)
  assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
  used = [sum(lengths[item] for item in row) for row in rows]
  assert all(0 < total <= size for total in used)
  # Two rows that are at most half full would have been one.
  assert sum(2 * total <= size for total in used) <= 1


def test_packing_is_best_fit_decreasing():
  # 7 and 6 open rows; 4 fits the second best, 3 the first, 2 opens a third.
  assert pack([2, 3, 4, 6, 7], 10) == [[4, 1], [3, 2], [0]]


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"separator": None}, r"^PackedTextInput\.separator = None: it must be a string"),
    ({"seq_len": 0}, r"^PackedTextInput\.seq_len = 0: it must be an integer of at l"),
    ({"split": "dev", "text_dir": ""}, r"PackedTextInput\.split = 'dev': it must be"),
  ],
)
def test_bad_options_are_refused(changes, words):
  with pytest.raises((TypeError, ValueError), match=words):
    packed("", **changes)


def test_texts_that_cannot_be_read_are_named(tmp_path):
  folder = text_folder(tmp_path, test=["", ""], train=["caf\t"])
  with pytest.raises(ValueError, match=r"^PackedTextInput: split 'test' has no char"):
    packed(folder).check_data()
  with pytest.raises(ValueError, match=r"0\.txt: character '\\t' at 3"):
    packed(folder, split="train").check_data()
  with pytest.raises(LookupError, match=r"^PackedTextInput\.text_dir: no \*\.txt in"):
    packed(folder, split="other").check_data()
