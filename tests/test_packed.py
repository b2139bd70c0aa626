"""Tensors that go the same way are one value, and are told apart by name."""

import numpy as np
import pytest

from tfpipe.packed import PackedTensors, pack


@pytest.fixture
def made(tf):
  values = {name: tf.fill([2], float(n)) for n, name in enumerate("dcba")}
  specs = {name: tf.TensorSpec([2]) for name in values}
  packs = {("d", "a"): pack([values["d"], values["a"]])}
  return PackedTensors(packs, specs, {name: values[name] for name in "cb"}), packs


def test_names_come_in_the_order_in_which_they_are_packed(made):
  assert list(made[0]) == ["d", "a", "c", "b"]
  assert len(made[0]) == 4


def test_each_has_its_value_packed_or_not(made):
  for name, value in zip("dcba", range(4), strict=True):
    np.testing.assert_array_equal(made[0][name], [value, value])
  with pytest.raises(KeyError):
    made[0]["e"]


def test_those_packed_together_are_handed_on_as_they_are(made):
  tensors, packs = made
  assert tensors.packed(("d", "a")) is packs["d", "a"]


def test_others_are_packed_once(tf, made):
  tensors, _ = made
  packed = tensors.packed(("b", "a"))
  assert tensors.packed(("b", "a")) is packed
  found = tf.raw_ops.OptionalGetValue(
    optional=packed, output_types=[tf.float32] * 2, output_shapes=[[2]] * 2
  )
  np.testing.assert_array_equal(found, [[2, 2], [3, 3]])
