"""Text inputs: the vocabulary, windows, padding, resuming."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.input import embedded
from tfpipe.input.text_input import (
  VOCAB_SIZE,
  CharTextInput,
  SyntheticTextInput,
  decode,
  encode,
)


def text_folder(tmp_path, **splits):
  for split, texts in splits.items():
    (tmp_path / split).mkdir()
    for number, text in enumerate(texts):
      (tmp_path / split / f"{number}.txt").write_text(text)
  return str(tmp_path)


def chars(**changes):
  settings = {"batch_size": 2, "seq_len": 4, **changes}
  return CharTextInput.Params().Set(**settings).Instantiate()


def evaluation(**changes):
  settings = {"batch_size": 2, "seq_len": 4, **changes}
  return CharTextInput.EvalParams().Set(**settings).Instantiate()


def run(source, start=0, count=None):
  batches = source.dataset(start)
  return list((batches if count is None else batches.take(count)).as_numpy_iterator())


def test_the_vocabulary_is_the_newline_and_printable_ascii():
  assert VOCAB_SIZE == 97
  assert encode("\n ~A", "here").tolist() == [1, 2, 96, ord("A") - 30]


@given(
  st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126) | st.just("\n"))
)
def test_decoding_gives_the_text_back(text):
  ids = encode(text, "here")
  assert decode(ids) == text
  assert all(1 <= i < VOCAB_SIZE for i in ids)


@pytest.mark.parametrize("bad", ["\t", "é", "\x7f", "\r", "\U0001f600"])
def test_a_character_outside_the_vocabulary_is_named_with_its_place(bad):
  with pytest.raises(ValueError, match=r"play: character .* at 2 is not in the vocab"):
    encode(f"ab{bad}c", "play")


def test_specs_are_those_of_the_batches(tf):
  synthetic = SyntheticTextInput.Params().Set(batch_size=2, seq_len=4).Instantiate()
  for source in (chars(), synthetic):
    specs, spec = source.specs(), source.dataset().element_spec
    assert sorted(specs) == sorted(spec) == ["ids", "labels", "weights"]
    for key, value in specs.items():
      assert tuple(spec[key].shape) == value.shape == (2, 4)
      assert spec[key].dtype.name == value.dtype


def test_evaluation_windows_are_laid_out_as_the_text(tf, tmp_path):
  source = evaluation(text_dir=text_folder(tmp_path, test=["abcdefghij"]), batch_size=2)
  a = encode("abcdefghij", "").tolist()
  first, second = run(source)
  assert first["ids"].tolist() == [[0, *a[:3]], a[3:7]]
  assert first["labels"].tolist() == [a[:4], a[4:8]]
  assert first["weights"].tolist() == [[1] * 4, [1] * 4]
  assert second["ids"][0].tolist() == [*a[7:], 0]
  assert second["labels"][0].tolist() == [*a[8:], 0, 0]
  # Two characters are left; the second row only fills the batch.
  assert second["weights"].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("seq_len", [1, 4, 7, 10, 11, 40])
def test_evaluation_predicts_every_character_exactly_once(tf, tmp_path, seq_len):
  texts = ["abcdefghij", "KLM\n"]
  folder = text_folder(tmp_path, test=texts)
  source = evaluation(text_dir=folder, seq_len=seq_len, batch_size=1)
  predicted = [
    int(label)
    for batch in run(source)
    for label, weight in zip(batch["labels"].flat, batch["weights"].flat, strict=True)
    if weight
  ]
  assert decode(predicted) == "".join(texts)


def test_evaluation_of_the_held_out_play_weighs_each_character_once(tf):
  source = CharTextInput.EvalParams().Set(batch_size=32, seq_len=128).Instantiate()
  total = sum(batch["weights"].sum() for batch in run(source))
  assert total == len(embedded.shakespeare("test")["macbeth"])


def test_labels_are_the_ids_one_place_to_the_left(tf):
  for batch in run(chars(batch_size=8, seq_len=32), 0, 3):
    np.testing.assert_array_equal(batch["ids"][:, 1:], batch["labels"][:, :-1])


def test_training_windows_of_an_epoch_are_disjoint_and_shift_between_epochs(
  tf, tmp_path
):
  # Every character occurs once, so a label tells its place.
  text = "".join(map(chr, range(33, 33 + 47)))
  source = chars(text_dir=text_folder(tmp_path, train=[text]), batch_size=1)
  # 48 ids with the leading 0: (48 - 4) // 4 windows fit at every offset.
  assert source.num_examples == source.steps_per_epoch == 11
  offsets = set()
  for epoch in range(12):
    labels = [b["labels"][0] for b in run(source, 11 * epoch, 11)]
    seen = sorted(np.concatenate(labels).tolist())
    offsets.add(seen[0] - encode(text, "")[0])
    assert seen == list(range(seen[0], seen[0] + 44))
  assert offsets == {0, 1, 2, 3}


@pytest.mark.parametrize("start", [1, 10, 11, 25])
def test_training_resumes_exactly(tf, tmp_path, start):
  folder = text_folder(tmp_path, train=["a quick brown fox, " * 5])
  source = chars(text_dir=folder)
  whole = run(source, 0, start + 3)
  for a, b in zip(whole[start:], run(source, start, 3), strict=True):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_a_text_that_is_too_short_is_refused(tmp_path):
  folder = text_folder(tmp_path, train=["short"], test=[""])
  with pytest.raises(ValueError, match=r"seq_len = 4 is too long: .* 5 characters"):
    _ = chars(text_dir=folder).num_examples
  with pytest.raises(ValueError, match=r"seq_len = 4 is too long: split 'test' has 0"):
    _ = evaluation(text_dir=folder).num_examples


def test_a_folder_without_text_is_named_with_the_command_that_fills_it(tmp_path):
  source = chars(text_dir=str(tmp_path), split="dev")
  with pytest.raises(LookupError, match=r"no \*.txt in .*dev; .*prepare_data"):
    _ = source.num_examples


def test_a_bad_character_of_a_file_is_named_with_the_file(tmp_path):
  folder = text_folder(tmp_path, train=["fine", "caf\t"])
  with pytest.raises(ValueError, match=r"1.txt: character '\\t' at 3"):
    _ = chars(text_dir=folder).num_examples


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    (
      {"seq_len": 0},
      r"CharTextInput\.seq_len = 0: it must be an integer of at least 1",
    ),
    ({"split": "dev"}, "split = 'dev': it must be one of 'train', 'test'"),
    ({"text_dir": None}, "text_dir = None: it must be a string"),
  ],
)
def test_bad_options_are_refused(changes, words):
  with pytest.raises((TypeError, ValueError), match=words):
    chars(**changes)


def test_synthetic_ids_are_distinct_windows_without_padding(tf):
  p = SyntheticTextInput.Params().Set(
    batch_size=3, seq_len=16, vocab_size=50, num_examples=13, last_batch="pad"
  )
  source = p.Instantiate()
  batches = run(source, 0, source.steps_per_epoch)
  ids = np.concatenate([b["ids"] for b in batches])
  weights = np.concatenate([b["weights"] for b in batches])
  assert (ids.min() >= 1) & (ids.max() < 50)
  assert weights.sum() == 13 * 16
  assert len({row.tobytes() for row, w in zip(ids, weights, strict=True) if w[0]}) == 13
  again = run(p.Copy().Instantiate(), 0, 1)[0]["ids"]
  other = run(p.Copy().Set(seed=1).Instantiate(), 0, 1)[0]["ids"]
  np.testing.assert_array_equal(batches[0]["ids"], again)
  assert not np.array_equal(again, other)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
  (tmp_path / "train").mkdir()
  (tmp_path / "train" / "caf\u00e9.txt").write_bytes("caf\u00e9".encode("latin-1"))
  params = CharTextInput.Params().Set(
    batch_size=2, text_dir=str(tmp_path), split="train"
  )
  with pytest.raises(ValueError, match=r"text_dir: .*caf.\.txt is not UTF-8: .*0xe9"):
    _ = params.Instantiate().num_examples
