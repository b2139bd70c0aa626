import numpy as np
import pytest

from tests.layers import reference
from tests.layers.run_layer import call, gradients
from tfpipe.cost import ArraySpec
from tfpipe.layers.pooling import AvgPool, GlobalAvgPool, MaxPool


def maps(side):
  x = np.random.default_rng(2).normal(size=(2, side, side, 3))
  return (x - 5).astype(np.float32)  # below 0: zeros from padding would show


@pytest.mark.parametrize(
  ("cls", "oracle"), [(MaxPool, reference.max_pool), (AvgPool, reference.avg_pool)]
)
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("window", "stride"), [(2, 1), (2, 2), (3, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize("side", [6, 7])
def test_pools_see_only_cells_of_the_map(
  tf, cls, oracle, padding, window, stride, side
):
  params = cls.Params().Set(window=window, stride=stride, padding=padding)
  x = maps(side)
  y = call(tf, params, {}, tf.constant(x))
  np.testing.assert_allclose(y, oracle(x, window, stride, padding), rtol=1e-6)
  cost = cls.FPropMeta(params, ArraySpec(x.shape))
  assert cost.out_shapes.shape == y.shape
  assert cost.flops == window**2 * y.numpy().size
  assert cost.matmul_flops == cost.param_count == 0


def test_same_average_divides_by_the_number_of_valid_cells(tf):
  x = np.ones((1, 3, 3, 1), np.float32)
  y = call(tf, AvgPool.Params(), {}, tf.constant(x))
  np.testing.assert_array_equal(y, x)


def test_the_gradient_of_a_max_goes_to_the_largest(tf):
  x = np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
  dy = np.ones((1, 1, 1, 1), np.float32)
  run = gradients(tf, MaxPool.Params().Set(window=2, stride=2), {}, [x], dy)
  np.testing.assert_array_equal(run.inputs[0].numpy().ravel(), [0, 0, 0, 1])


def test_global_pool_is_the_mean_of_a_channel(tf):
  x = maps(6)
  y = call(tf, GlobalAvgPool.Params(), {}, tf.constant(x))
  np.testing.assert_allclose(y, x.mean((1, 2)), rtol=1e-5)
  cost = GlobalAvgPool.FPropMeta(GlobalAvgPool.Params(), ArraySpec(x.shape))
  assert cost.out_shapes == ArraySpec((2, 3))
  assert cost.flops == x.size


@pytest.mark.parametrize(
  ("name", "value"), [("window", 0), ("stride", 0), ("padding", "same")]
)
def test_bad_settings_are_refused(name, value):
  with pytest.raises(ValueError, match=f"MaxPool.{name} = {value!r}"):
    MaxPool.Params().Set(**{name: value}).Instantiate()


def test_a_map_smaller_than_the_window_is_refused():
  params = AvgPool.Params().Set(name="pool", window=5, stride=3, padding="VALID")
  with pytest.raises(ValueError, match=r"pool: a window of \(5, 5\) does not fit"):
    AvgPool.FPropMeta(params, ArraySpec((1, 4, 4, 3)))
