"""What a layer declares is checked where it is declared."""

import re

import numpy as np
import pytest

from tfpipe.layers.base import Layer, WeightParams
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


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0)])
def test_a_weight_without_elements_starts_by_any_rule(tf, shape):
  for init in (WeightInit.Xavier(), WeightInit.TruncatedGaussianFanOut()):
    assert init.values("w", shape, 0).shape == shape


class Named(Layer):
  """Takes names, by the methods that its Params say."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("names", [], "Method and name.")
    return p

  def __init__(self, params):
    super().__init__(params)
    what = {
      "CreateChild": Layer.Params(),
      "CreateChildren": [Layer.Params()],
      "CreateVariable": WeightParams((2,)),
    }
    for method, name in params.names:
      getattr(self, method)(name, what[method])


@pytest.mark.parametrize(
  "names",
  [
    [("CreateChild", "params")],
    [("CreateChild", "path")],
    [("CreateChildren", "weights")],
    [("CreateChild", "FProp")],
    [("CreateVariable", "w"), ("CreateChildren", "w")],
    [("CreateChildren", "w"), ("CreateVariable", "w")],
    [("CreateChildren", "w"), ("CreateVariable", "w_0")],
    [("CreateChild", "w"), ("CreateChild", "w")],
  ],
)
def test_a_name_that_a_layer_has_already_is_refused(names):
  message = f"the name '{names[-1][1]}' of a child, weight or seed must .* not be taken"
  with pytest.raises(ValueError, match=message):
    Named.Params().Set(name="layer", names=names).Instantiate()


def test_weights_may_be_named_as_what_a_layer_has():
  names = [("CreateVariable", "path"), ("CreateChildren", "blocks")]
  layer = Named.Params().Set(name="layer", names=names).Instantiate()
  assert list(layer.weights()) == ["path"]
  assert [child.name for child in layer.children()] == ["blocks_0"]
