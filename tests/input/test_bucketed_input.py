"""Texts in rows of a few lengths: each shape is static, each text is seen."""

import itertools
import re

import numpy as np
import pytest

from tests.input.test_base import assert_same
from tests.input.test_shards import assert_together, shards_of
from tests.input.test_text_input import run, text_folder
from tfpipe.input import embedded
from tfpipe.input.bucketed_input import BucketedTextInput
from tfpipe.input.text_input import decode, encode

BUCKETS = (32, 64)


def make(**changes):
  settings = {"batch_size": 8, "seq_len": 128, "bucket_lengths": BUCKETS, **changes}
  return BucketedTextInput.Params().Set(**settings).Instantiate()


def evaluation(**changes):
  settings = {"batch_size": 8, "seq_len": 128, "bucket_lengths": BUCKETS, **changes}
  return BucketedTextInput.EvalParams().Set(**settings).Instantiate()


def texts_of(split):
  """Cuts the shipped plays as the input should: after runs of blank lines, at 128."""
  found = []
  for text in embedded.shakespeare(split).values():
    for speech in re.findall(r"(?s).+?(?:(?:\n\n)+|\Z)", text):
      found += [speech[i : i + 128] for i in range(0, len(speech), 128)]
  return found


def labels_of(batches):
  return [
    decode(label[weight > 0])
    for batch in batches
    for label, weight in zip(batch["labels"], batch["weights"], strict=True)
    if weight.any()
  ]


def test_evaluation_shows_every_text_once_in_the_shortest_row_that_holds_it(tf):
  batches = run(evaluation())
  assert sorted(labels_of(batches)) == sorted(texts_of("test"))
  lengths = []
  for batch in batches:
    rows, time = batch["ids"].shape
    assert rows == 8
    lengths.append(time)
    shorter = max([n for n in (0, *BUCKETS) if n < time])
    used = batch["weights"].sum(axis=1)
    assert all(count == 0 or shorter < count <= time for count in used)
  assert lengths == sorted(lengths)
  assert set(lengths) == {32, 64, 128}


def test_a_row_is_the_text_and_padding(tf, tmp_path):
  folder = text_folder(tmp_path, test=["abc;de;", "f"])
  source = evaluation(
    text_dir=folder, separator=";", seq_len=6, bucket_lengths=(3,), batch_size=2
  )
  small, large = run(source)
  a = encode("abc;", "").tolist()
  assert large["ids"].tolist() == [[0, *a[:3], 0, 0]] * 2
  assert large["labels"].tolist() == [[*a, 0, 0]] * 2
  assert large["weights"].tolist() == [[1] * 4 + [0] * 2, [0] * 6]
  assert [decode(row) for row in small["labels"]] == ["de;", "f"]
  assert small["weights"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_epoch_of_training_shows_whole_batches_of_every_length_in_random_order(tf):
  source = make()
  texts = texts_of("train")
  sizes = [len(text) for text in texts]
  counts = [
    sum(low < size <= high for size in sizes)
    for low, high in ((0, 32), (32, 64), (64, 128))
  ]
  assert source.steps_per_epoch == sum(count // 8 for count in counts)
  batches = run(source, 0, source.steps_per_epoch)
  seen = labels_of(batches)
  assert len(seen) == 8 * source.steps_per_epoch
  rest = list(texts)
  for text in seen:
    rest.remove(text)
  assert len(rest) < 3 * 8
  lengths = [batch["ids"].shape[1] for batch in batches]
  assert [lengths.count(n) for n in (32, 64, 128)] == [count // 8 for count in counts]
  # In order of length there would be two changes.
  assert np.count_nonzero(np.diff(lengths)) > 50


@pytest.mark.parametrize("buckets", [(), (32,), BUCKETS, (16, 32, 64, 96)])
def test_rows_are_as_long_as_their_bucket_and_no_longer(tf, buckets):
  batches = run(evaluation(bucket_lengths=buckets))
  bounds = [0, *buckets, 128]
  expected = 0
  for low, high in itertools.pairwise(bounds):
    count = sum(low < len(text) <= high for text in texts_of("test"))
    expected += -(-count // 8) * 8 * high
  assert sum(batch["ids"].size for batch in batches) == expected


@pytest.mark.parametrize("start", [1, 300, 10**6])
@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_training_resumes_exactly(tf, start, last_batch):
  source = make(last_batch=last_batch)
  first = max(0, start - 2)
  whole = run(source, first, 5)
  assert_same(run(source, start, 2), whole[start - first : start - first + 2])


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_the_shards_of_a_step_are_the_batch_of_one_input(tf, last_batch):
  params = make(last_batch=last_batch).params
  assert_together(params.Instantiate(), shards_of(params, 2), 330, 60)


def test_specs_of_each_length_are_those_of_the_batches(tf):
  source = make()
  shapes = {specs.ids.shape for specs in source.all_specs()}
  assert shapes == {(8, 32), (8, 64), (8, 128)}
  assert source.specs() == source.all_specs()[-1]
  for batch in run(source, 0, 30):
    assert {value.shape for value in batch.values()} <= shapes
  spec = source.dataset().element_spec
  assert {tuple(spec[name].shape) for name in spec} == {(8, None)}


@pytest.mark.parametrize(
  ("value", "seq_len"),
  [
    ((64, 32), 128),
    ((32, 32), 128),
    ((0, 32), 128),
    ((32, 128), 128),
    ((32.0,), 128),
    ((True,), 128),
    (32, 128),
    ("32", 128),
  ],
)
def test_lengths_that_do_not_ascend_below_seq_len_are_refused(value, seq_len):
  with pytest.raises(
    ValueError,
    match=r"^BucketedTextInput\.bucket_lengths = .*: must be integers of at least 1, "
    "ascending, all below seq_len = 128",
  ):
    make(bucket_lengths=value, seq_len=seq_len)


def test_texts_that_no_batch_would_ever_show_are_refused(tmp_path):
  folder = text_folder(tmp_path, train=["a;b;c;dddd;"])
  changes = {"text_dir": folder, "separator": ";", "seq_len": 5}
  with pytest.raises(ValueError, match=r"the 1 texts of bucket 5 fill no batch, and l"):
    make(bucket_lengths=(2,), batch_size=2, **changes).check_data()
  # What fills no whole batch beside others is in another epoch's.
  source = make(bucket_lengths=(2,), batch_size=1, **changes)
  assert source.steps_per_epoch == 4
  assert make(bucket_lengths=(2, 3), batch_size=1, **changes).steps_per_epoch == 4
