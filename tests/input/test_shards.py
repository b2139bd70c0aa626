"""Inputs that share the data: together they are one input of larger batches."""

import numpy as np
import pytest

from tests.input.test_base import NumberInput
from tests.input.test_tfds_input import data_dir, make  # noqa: F401 (a fixture)
from tfpipe.input.image_input import EmbeddedImageInput
from tfpipe.input.text_input import CharTextInput, SyntheticTextInput


def number_input(**changes):
  return NumberInput.Params().Set(**changes).Instantiate()


def batches(source, start, count):
  return list(source.dataset(start).take(count).as_numpy_iterator())


def assert_together(whole, shards, start=0, count=5):
  """Compares batches with what the shards give, one after the other."""
  expected = batches(whole, start, count)
  parts = [batches(shard, start, count) for shard in shards]
  assert {len(part) for part in parts} == {len(expected)}
  for step, batch in enumerate(expected):
    for key, value in batch.items():
      found = np.concatenate([part[step][key] for part in parts])
      np.testing.assert_array_equal(found, value)


def shards_of(params, num):
  rows = params.batch_size // num
  return [
    params.Copy().Set(batch_size=rows, num_shards=num, shard_index=i).Instantiate()
    for i in range(num)
  ]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("last_batch", ["drop", "pad"])
@pytest.mark.parametrize(("rows", "num"), [(6, 2), (6, 3), (8, 4), (4, 1)])
def test_the_shards_of_a_step_are_the_batch_of_one_input(
  tf, rows, num, last_batch, shuffle
):
  params = NumberInput.Params().Set(
    batch_size=rows, last_batch=last_batch, shuffle=shuffle
  )
  shards = shards_of(params, num)
  for start in (0, 3, 10**6):
    assert_together(params.Instantiate(), shards, start, 9)


def test_an_evaluation_in_shards_sees_every_example_once(tf):
  shards = shards_of(NumberInput.EvalParams().Set(batch_size=8), 4)
  assert {shard.steps_per_epoch for shard in shards} == {3}
  seen = [
    int(i)
    for shard in shards
    for batch in batches(shard, 0, 9)
    for i, weight in zip(batch["id"], batch["weight"], strict=True)
    if weight
  ]
  assert sorted(seen) == list(range(23))


@pytest.mark.parametrize(
  "params",
  [
    EmbeddedImageInput.Params().Set(
      batch_size=12, channels=3, random_flip=True, color_jitter=True, cutout=8
    ),
    CharTextInput.Params().Set(batch_size=12, seq_len=16),
    SyntheticTextInput.Params().Set(batch_size=12, seq_len=16),
  ],
  ids=lambda params: params.cls.__name__,
)
def test_augmentation_is_the_same_in_shards(tf, params):
  assert_together(params.Instantiate(), shards_of(params, 3), 2, 2)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_shards_of_stored_records_are_the_batch_of_one_input(
  data_dir,  # noqa: F811
  last_batch,
  shuffle,
):
  settings = {"last_batch": last_batch, "shuffle": shuffle, "color_jitter": shuffle}
  params = make(data_dir, batch_size=6, **settings).params
  for start in (0, 8):
    assert_together(params.Instantiate(), shards_of(params, 2), start, 11)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_shards": 0}, r"^NumberInput\.num_shards = 0: it must be an integer of at l"),
    ({"num_shards": 1.5}, r"^NumberInput\.num_shards = 1\.5: it must be an integer"),
    (
      {"shard_index": 1},
      r"^NumberInput\.shard_index = 1: .* at least 0 and at most 0 ",
    ),
    ({"num_shards": 3, "shard_index": 3}, r"shard_index = 3: .* 0 and at most 2 "),
    ({"num_shards": 3, "shard_index": -1}, r"shard_index = -1: .* 0 and at most 2 "),
  ],
)
def test_a_shard_that_there_is_not_is_refused(changes, message):
  with pytest.raises((TypeError, ValueError), match=message):
    number_input(batch_size=1, **changes)


@pytest.mark.parametrize(
  ("rows", "num", "message"),
  [
    (8, 3, r"batch_size = 8 by num_shards = 3 is more than the 23 .* it to 7 or less$"),
    (1, 24, r"by num_shards = 24 .* 23 examples .*; set num_shards to 23 or less$"),
  ],
)
def test_shards_that_need_more_than_the_data_are_refused(rows, num, message):
  with pytest.raises(ValueError, match=message):
    number_input(batch_size=rows, num_shards=num).check_data()
