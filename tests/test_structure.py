import pytest

from tfpipe.nested_map import NestedMap
from tfpipe.structure import Structure, static_shape


def _nest(tf):
  return NestedMap(
    x=tf.constant([1.0, 2.0]),
    pair=(tf.constant(3), None),
    rest=[
      NestedMap(count=3, name="a", mask=tf.constant([True])),
      {"b": tf.ones([2, 2])},
    ],
  )


def test_tensors_come_out_flat_in_the_order_of_tf_nest(tf):
  nest = _nest(tf)
  _, tensors = Structure.split(nest)
  expected = [nest.pair[0], nest.rest[0].mask, nest.rest[1]["b"], nest.x]
  assert len(tensors) == len(expected)
  assert all(a is b for a, b in zip(tensors, expected, strict=True))


def test_packing_gives_the_same_nest_with_its_constants_and_types(tf):
  nest = _nest(tf)
  structure, tensors = Structure.split(nest)
  packed = structure.pack(tensors)
  tf.nest.assert_same_structure(packed, nest)
  assert type(packed) is NestedMap
  assert type(packed.rest[0]) is NestedMap
  assert type(packed.pair) is tuple
  assert packed.pair[1] is None
  assert (packed.rest[0].count, packed.rest[0].name) == (3, "a")
  assert packed.x is nest.x


def test_other_tensors_take_the_places_of_the_first(tf):
  structure, tensors = Structure.split((tf.constant(1), 5, tf.constant(2)))
  assert structure.pack(["a", "b"]) == ("a", 5, "b")
  assert len(tensors) == 2


@pytest.mark.parametrize("empty", [None, (), [], 7, "text", NestedMap()])
def test_a_nest_without_tensors_is_all_constant(tf, empty):
  structure, tensors = Structure.split(empty)
  assert tensors == []
  assert structure.pack([]) == empty


def test_a_single_tensor_is_a_nest(tf):
  structure, tensors = Structure.split(tf.constant(1.5))
  assert structure.pack(tensors) is tensors[0]


def test_specs_are_tensors_to_be(tf):
  spec = tf.TensorSpec([2, 3], tf.int32)
  structure, tensors = Structure.split({"a": spec, "b": None})
  assert tensors == [spec]
  assert structure.pack([1]) == {"a": 1, "b": None}


def test_equal_nests_have_skeletons_of_equal_text_and_others_do_not(tf):
  def text(nest):
    return repr(Structure.split(nest)[0].skeleton)

  x = tf.constant(1.0)
  assert text((x, 3, None)) == text((tf.ones([5]), 3, None))
  texts = {text(nest) for nest in ((x, 3), (x, 4), [x, 3], (x, x), (3, x), x, (x,))}
  assert len(texts) == 7


def test_static_shape_is_a_tuple_of_numbers(tf):
  assert static_shape(tf.TensorSpec([2, 3])) == (2, 3)
  assert static_shape(tf.zeros([])) == ()
  assert static_shape(tf.Variable(tf.zeros([4]))) == (4,)


@pytest.mark.parametrize("shape", [None, [2, None]])
def test_an_unknown_dimension_is_refused(tf, shape):
  with pytest.raises(ValueError, match="every dimension must be known"):
    static_shape(tf.TensorSpec(shape))
