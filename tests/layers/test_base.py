"""What a layer declares is checked where it is declared."""

import re

import numpy as np
import pytest

from tfpipe.layers.base import WeightParams
from tfpipe.layers.weight_init import WeightInit


@pytest.mark.parametrize(
  ("shape", "message"),
  [
    ("ab", "the shape of a weight is 'ab': must be a tuple"),
    (3, "the shape of a weight is 3: must be a tuple"),
    ((None, 3), "(None, 3): None must be a whole number, at least 0"),
    ((2, -1), "(2, -1): -1 must be a whole number, at least 0"),
    ((2.0, 3), "(2.0, 3): 2.0 must be a whole number, at least 0"),
    ((True, 3), "(True, 3): True must be a whole number, at least 0"),
  ],
)
def test_what_is_no_shape_of_a_weight_is_refused(shape, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    WeightParams(shape)


def test_shapes_of_any_whole_numbers_are_tuples_of_ints():
  for shape in ([2, 3], (2, 3), (np.int64(2), np.int32(3))):
    made = WeightParams(shape).shape
    assert made == (2, 3)
    assert [type(size) for size in made] == [int, int]
  assert WeightParams(()).shape == ()


def test_what_is_no_start_value_is_refused():
  with pytest.raises(ValueError, match="start value of a weight is 3: must be a Weigh"):
    WeightParams((2,), 3)
  assert WeightParams((2,), WeightInit.Constant(3)).init.scale == 3
