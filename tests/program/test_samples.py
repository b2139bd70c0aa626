import numpy as np
import pytest

from tfpipe.input.text_input import CharTextInput, SyntheticTextInput
from tfpipe.program import samples


def images(tf, array):
  return samples.images({"x": tf.constant(array, tf.float32)})


def test_a_picture_goes_from_black_to_white(tf):
  ramp = np.linspace(-3, 5, 4).reshape(1, 2, 2, 1)
  (picture,) = images(tf, ramp)["x"]
  np.testing.assert_array_equal(picture.ravel(), [0, 85, 170, 255])
  assert picture.dtype == np.uint8


def test_pictures_are_scaled_one_by_one(tf):
  array = np.array([[0.0, 1.0], [0.0, 100.0]]).reshape(2, 2, 1, 1)
  assert images(tf, array)["x"].ravel().tolist() == [0, 255, 0, 255]


@pytest.mark.parametrize("value", [0.0, 7.0, np.nan, np.inf, -np.inf, 3e38])
def test_a_picture_of_one_value_is_black_whatever_the_value(tf, value):
  assert not images(tf, np.full((1, 2, 2, 3), value))["x"].any()


def test_values_that_are_not_finite_count_as_0(tf):
  array = np.array([np.nan, -1.0, 1.0, np.inf]).reshape(1, 2, 2, 1)
  assert images(tf, array)["x"].ravel().tolist() == [128, 0, 255, 128]


def test_only_the_first_examples_are_shown(tf):
  assert images(tf, np.zeros((9, 1, 1, 1)))["x"].shape == (8, 1, 1, 1)
  assert images(tf, np.zeros((3, 1, 1, 1)))["x"].shape == (3, 1, 1, 1)


@pytest.mark.parametrize(
  "shape", [(2,), (2, 3), (2, 3, 3), (2, 3, 3, 2), (2, 1, 1, 1, 1)]
)
def test_other_fields_are_no_pictures(tf, shape):
  assert images(tf, np.zeros(shape)) == {}


def test_numbers_of_rank_4_are_no_pictures(tf):
  assert samples.images({"x": tf.zeros([2, 3, 3, 1], tf.int32)}) == {}


def test_characters_are_shown_as_text_with_its_lines(tf):
  source = CharTextInput.Params().Set(batch_size=1, seq_len=4).Instantiate()
  ids = tf.constant([[0, 42, 1, 43]], tf.int32)  # none, H, newline, I
  found = samples.texts(source, {"ids": ids, "weights": tf.zeros([1, 4])})
  assert found == {"ids": ["    H\n    I"]}
  assert not samples.is_text(tf.zeros([2, 3])), "weights"


def test_places_in_packed_rows_are_shown_as_numbers(tf):
  source = CharTextInput.Params().Set(batch_size=1, seq_len=4).Instantiate()
  found = samples.texts(source, {"positions": tf.constant([[0, 127]], tf.int32)})
  assert found == {"positions": ["    0 127"]}


def test_ids_without_characters_are_shown_as_they_are(tf):
  source = SyntheticTextInput.Params().Set(batch_size=2, num_examples=2).Instantiate()
  rows = {"ids": tf.constant([[3, 0], [12, 7]], tf.int64), "label": tf.zeros([2])}
  assert samples.texts(source, rows) == {"ids": ["    3 0", "    12 7"]}
