"""Vectors of stages: padded, taken apart, and put together as they were."""

from __future__ import annotations

import numpy as np
import pytest

from tfpipe.spmd.border import Border
from tfpipe.spmd.layout import Layout

LAYOUT = Layout(({"a": (2, 2), "b": ()}, {}, {"a": (2, 2)}))
VALUES = {"a": np.arange(4.0).reshape(2, 2), "b": np.array(9.0)}


def test_vectors_are_as_long_as_the_longest():
  packed = LAYOUT.pack(VALUES)
  np.testing.assert_array_equal(
    packed, [[0, 1, 2, 3, 9], [0, 0, 0, 0, 0], [0, 1, 2, 3, 0]]
  )
  assert packed.dtype == np.float32
  assert Layout(({}, {})).size == 1


def test_what_several_stages_have_belongs_to_the_first():
  assert LAYOUT.shared() == {"a": (2, 2)}
  assert [LAYOUT.owned(stage) for stage in range(3)] == [["a", "b"], [], []]


def test_copies_must_be_equal():
  packed = LAYOUT.pack(VALUES)
  np.testing.assert_array_equal(LAYOUT.unpack(packed)["a"], VALUES["a"])
  packed[2, 1] = 7
  with pytest.raises(ValueError, match="copy of 'a' in stage 2"):
    LAYOUT.unpack(packed)


def test_tensors_are_taken_apart_and_joined(tf):
  packed = LAYOUT.pack(VALUES)
  for stage in range(3):
    parts = LAYOUT.split(tf.constant(packed[stage]), stage)
    assert list(parts) == list(LAYOUT.stages[stage])
    np.testing.assert_array_equal(LAYOUT.join(parts, stage), packed[stage])
  without = LAYOUT.join({"b": tf.constant(5.0)}, 0)
  np.testing.assert_array_equal(without, [0, 0, 0, 0, 5])


def test_every_dtype_crosses_a_border_as_it_is(tf):
  tensors = [
    tf.constant([[1.5, 2.5]]),
    tf.constant([1.0, 3.0], tf.bfloat16),
    tf.constant([2**30, -1]),
    tf.constant([2**40], tf.int64),
    tf.constant([True, False, True]),
    tf.constant(7.0),
  ]
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
  border = Border([specs, specs[:1]])
  assert border.sizes == {"float32": 3, "bfloat16": 2, "int32": 5, "int64": 1}
  found = border.unpack(border.pack(tensors, 0), 0)
  for one, other in zip(found, tensors, strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)
  (alone,) = border.unpack(border.pack(tensors[:1], 1), 1)
  np.testing.assert_array_equal(alone, tensors[0])


def test_what_cannot_cross_is_refused(tf):
  with pytest.raises(ValueError, match="float64 crosses from stage 1"):
    Border([[], [tf.TensorSpec([2], tf.float64)]])
