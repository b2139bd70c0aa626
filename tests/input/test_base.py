"""The rule of all inputs: a batch is a pure function of Params and step."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.cost import ArraySpec
from tfpipe.input.base import Input
from tfpipe.nested_map import NestedMap

PRIME = 23


class NumberInput(Input):
  """Gives the numbers of the examples themselves."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("n", PRIME, "Examples.")
    return p

  def specs(self):
    size = (self.params.batch_size,)
    return NestedMap(
      id=ArraySpec(size, "int64"),
      counter=ArraySpec(size, "int64"),
      weight=ArraySpec(size),
    )

  @property
  def num_examples(self):
    return self.params.n

  def _reader(self):
    return lambda rows: {
      "id": rows.ids,
      "counter": rows.counters,
      "weight": rows.real,
    }


def make(**changes):
  return NumberInput.Params().Set(**{"batch_size": 5, **changes}).Instantiate()


def run(source, start=0, count=None):
  batches = source.dataset(start)
  return list((batches if count is None else batches.take(count)).as_numpy_iterator())


def assert_same(left, right):
  assert len(left) == len(right)
  for a, b in zip(left, right, strict=True):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def real_ids(batches):
  return [
    int(i) for b in batches for i, w in zip(b["id"], b["weight"], strict=True) if w
  ]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("n", [5, 7, PRIME, 25])
def test_with_pad_every_example_has_weight_one_exactly_once_an_epoch(tf, n, shuffle):
  source = make(n=n, last_batch="pad", shuffle=shuffle)
  assert source.steps_per_epoch == -(-n // 5)
  for epoch in range(3):
    batches = run(source, epoch * source.steps_per_epoch, source.steps_per_epoch)
    assert sorted(real_ids(batches)) == list(range(n))
    assert sum(b["weight"].sum() for b in batches) == n


def test_padding_rows_repeat_an_example_of_the_split(tf):
  last = run(make(last_batch="pad", repeat=False))[-1]
  assert last["weight"].tolist() == [1, 1, 1, 0, 0]
  assert set(last["id"]) <= set(range(PRIME))


def test_with_drop_an_epoch_has_distinct_examples_and_whole_batches(tf):
  source = make()
  assert source.steps_per_epoch == 4
  for epoch in range(3):
    ids = real_ids(run(source, 4 * epoch, 4))
    assert len(ids) == len(set(ids)) == 20


def test_without_shuffle_examples_come_in_order(tf):
  ids = real_ids(run(make(shuffle=False, repeat=False, last_batch="pad")))
  assert ids == list(range(PRIME))


def test_epochs_have_different_orders_and_so_have_seeds(tf):
  source = make(n=25)
  first, second = run(source, 0, 5), run(source, 5, 5)
  other = run(make(n=25, seed=1), 0, 5)
  orders = {tuple(real_ids(batches)) for batches in (first, second, other)}
  assert len(orders) == 3


def test_the_orders_of_many_epochs_look_uniform(tf):
  # The mean place of an example over 400 epochs of 20 has a standard deviation of
  # sqrt((20² - 1) / 12 / 400) = 0.29; five of them on either side of 9.5.
  source = make(n=20, batch_size=20)
  orders = np.stack([b["id"] for b in run(source, 0, 400)])
  places = np.argsort(orders, axis=1).mean(axis=0)
  assert np.abs(places - 9.5).max() < 5 * 0.29


@settings(max_examples=15)
@given(
  start=st.integers(0, 3 * PRIME),
  size=st.integers(1, 7),
  last_batch=st.sampled_from(["drop", "pad"]),
  shuffle=st.booleans(),
)
def test_a_resumed_run_sees_the_batches_of_an_uninterrupted_one(
  tf, start, size, last_batch, shuffle
):
  source = make(batch_size=size, last_batch=last_batch, shuffle=shuffle)
  whole = run(source, 0, start + 3)
  assert_same(run(source, start, 3), whole[start:])


def test_resuming_late_needs_no_replay(tf):
  # A replay of 10**12 steps would never end.
  (batch,) = run(make(), 10**12, 1)
  assert len(set(batch["id"])) == 5


def test_batches_do_not_depend_on_the_global_seed(tf):
  source = make()
  tf.random.set_seed(1)
  first = run(source, 0, 6)
  tf.random.set_seed(2)
  second = run(source, 0, 6)
  assert_same(first, second)


def test_counters_count_examples_whatever_the_batch_size(tf):
  a = run(make(last_batch="pad", batch_size=3), 0, 16)
  b = run(make(last_batch="pad", batch_size=4), 0, 12)
  seen = [
    [(c, i) for x in batches for c, i, w in zip(*x.values(), strict=True) if w]
    for batches in (
      [{k: x[k] for k in ("counter", "id", "weight")} for x in y] for y in (a, b)
    )
  ]
  assert seen[0] == seen[1]
  assert [c for c, _ in seen[0]] == list(range(2 * PRIME))


def test_without_repeat_the_data_ends_after_an_epoch(tf):
  assert len(run(make(repeat=False))) == 4
  assert run(make(repeat=False), 4) == []
  with pytest.raises(ValueError, match=r"at least 0 and at most 4 .*got 5"):
    make(repeat=False).dataset(5)


def test_eval_params_are_one_ordered_pass_with_padding():
  p = NumberInput.EvalParams()
  assert (p.split, p.shuffle, p.repeat, p.last_batch) == ("test", False, False, "pad")


@pytest.mark.parametrize("start", [-1, 1.0, True, "0"])
def test_a_start_step_that_is_no_count_is_refused(tf, start):
  with pytest.raises(ValueError, match="start_step must be an integer of at least 0"):
    make().dataset(start)


def test_a_batch_larger_than_the_data_is_refused():
  with pytest.raises(ValueError, match=r"batch_size = 24 .* 23 examples .* 23 or less"):
    _ = make(batch_size=24).steps_per_epoch


@pytest.mark.parametrize(
  ("key", "value", "error", "words"),
  [
    ("batch_size", 0, ValueError, "= 0: it must be an integer of at least 1"),
    ("batch_size", 2.0, TypeError, r"= 2\.0: it must be an integer of at least 1"),
    ("batch_size", True, TypeError, "= True: it must be an integer of at least 1"),
    ("seed", -1, ValueError, "= -1: it must be .* at least 0 and at most 2147483647"),
    ("seed", 2**31, ValueError, "= 2147483648: it must be an integer .* 2147483647"),
    ("shuffle", 1, TypeError, "= 1: it must be True or False"),
    ("repeat", "no", TypeError, "= 'no': it must be True or False"),
    ("last_batch", "pads", ValueError, "= 'pads': .*'drop', 'pad'; did you mean 'pad'"),
    ("name", 3, TypeError, "= 3: it must be a string"),
  ],
)
def test_bad_fields_are_refused_when_the_input_is_made(key, value, error, words):
  with pytest.raises(error, match=rf"^NumberInput\.{key} {words}"):
    make(**{key: value})


def test_an_input_that_gives_other_batches_than_it_announces_is_refused(tf):
  class Liar(NumberInput):
    def specs(self):
      return NestedMap(id=ArraySpec((self.params.batch_size,), "int32"))

  with pytest.raises(
    ValueError, match=r"Liar announces batches of .*int32.* but gives"
  ):
    Liar.Params().Set(batch_size=5).Instantiate().dataset()


def test_params_of_an_input_are_its_own_copy():
  p = NumberInput.Params().Set(batch_size=5)
  source = p.Instantiate()
  p.batch_size = 6
  assert source.params.batch_size == 5


def test_specs_and_counts_of_all_inputs_need_no_tensorflow():
  program = """
import sys
from tfpipe.input import (
  bucketed_input, document_input, image_input, text_input, tfds_input)
for cls in (image_input.EmbeddedImageInput, image_input.SyntheticImageInput,
            text_input.CharTextInput, text_input.SyntheticTextInput,
            document_input.PackedTextInput, bucketed_input.BucketedTextInput):
  p = cls.Params().Set(batch_size=4)
  print(cls.Specs(p), p.Instantiate().steps_per_epoch)
p = tfds_input.TfdsImageInput.Params()
print(p.cls.Specs(p.Set(batch_size=4, dataset="cifar10", num_classes=10)))
assert "tensorflow" not in sys.modules
"""
  subprocess.run([sys.executable, "-c", program], check=True)
