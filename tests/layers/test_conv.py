import numpy as np
import pytest

from tests.layers import reference
from tests.layers.run_layer import call, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.conv import Conv2D, SeparableConv2D, subsample

# Sums of some hundred float32 products.
ATOL = 1e-5


def maps(*shape):
  return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def conv(shape, strides=(1, 1), padding="SAME"):
  return Conv2D.Params().Set(
    name="conv", filter_shape=shape, filter_stride=strides, padding=padding
  )


def separable(shape, **settings):
  return SeparableConv2D.Params().Set(name="conv", filter_shape=shape, **settings)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 2), (3, 1)])
@pytest.mark.parametrize("window", [(1, 1), (3, 3), (1, 7), (2, 5)])
@pytest.mark.parametrize("side", [7, 8])
def test_conv_is_the_sum_over_its_taps(tf, window, strides, padding, side):
  params = conv((*window, 3, 5), strides, padding)
  values = start_values(params.Instantiate())
  x = maps(2, side, side, 3)
  y = call(tf, params, values, tf.constant(x))
  expected = reference.conv2d(x, values["w"], strides, padding)
  np.testing.assert_allclose(y, expected, atol=ATOL)
  assert params.cls.FPropMeta(params, ArraySpec(x.shape)).out_shapes.shape == y.shape


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("side", [7, 8])
def test_separable_conv_is_a_depthwise_then_a_pointwise_one(tf, stride, dilation, side):
  params = separable((5, 5, 3, 4), stride=stride, dilation=dilation)
  values = start_values(params.Instantiate())
  x = maps(2, side, side, 3)
  middle = reference.depthwise(x, values["depthwise"], stride, dilation)
  expected = reference.conv2d(middle, values["pointwise"])
  y = call(tf, params, values, tf.constant(x))
  np.testing.assert_allclose(y, expected, atol=ATOL)


def test_separable_conv_equals_keras(tf):
  params = separable((3, 3, 4, 6), stride=2)
  values = start_values(params.Instantiate())
  layer = tf.keras.layers.SeparableConv2D(6, 3, 2, padding="same", use_bias=False)
  x = tf.constant(maps(2, 9, 9, 4))
  layer.build(x.shape)
  layer.set_weights([values["depthwise"], values["pointwise"]])
  np.testing.assert_allclose(call(tf, params, values, x), layer(x), atol=ATOL)


def test_a_strided_1x1_conv_never_reaches_onednn():
  # Its backward pass writes past a buffer there and corrupts memory.
  params = conv((1, 1, 5, 4), (2, 2))
  cost = params.cls.FPropMeta(params, ArraySpec((3, 15, 16, 5)))
  assert cost.activation_bytes == 4 * 3 * 8 * 8 * 5  # the pixels picked beforehand


def test_a_strided_1x1_conv_trains(tf):
  params = conv((1, 1, 5, 4), (2, 2))
  values = {"w": tf.constant(start_values(params.Instantiate())["w"])}
  x = maps(3, 15, 16, 5)
  with tf.GradientTape() as tape:
    tape.watch(values["w"])
    y = tf.reduce_sum(call(tf, params, values, tf.constant(x)))
  picked = x[:, ::2, ::2].sum((0, 1, 2), dtype=np.float64)
  expected = np.tile(picked[:, None], [1, 4])
  np.testing.assert_allclose(tape.gradient(y, values["w"])[0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("side", [7, 8])
def test_subsample_picks_every_pixel_of_a_grid(tf, rows, columns, side):
  x = maps(2, side, side, 3)
  y = subsample(tf.constant(x), (rows, columns))
  np.testing.assert_array_equal(y, x[:, ::rows, ::columns])


@pytest.mark.parametrize("side", [7, 8])
def test_subsample_from_1_on_puts_zeros_where_a_last_pixel_is_missing(tf, side):
  x = maps(2, side, side, 3)
  y = subsample(tf.constant(x), (2, 2), offset=1)
  padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
  np.testing.assert_array_equal(y, padded[:, 1::2, 1::2][:, : -(-side // 2)])


def test_kernels_count_in_the_l2_term_and_start_with_variance_2_over_fan_out(tf):
  layer = conv((3, 3, 64, 128)).Instantiate()
  weight = layer.weights()["w"]
  assert weight.l2
  assert weight.trainable
  values = weight.init.values("conv/w", weight.shape, seed=1).numpy()
  # Cutting at two standard deviations takes 23 % of the variance; 1.3 gives it back.
  assert values.var() == pytest.approx(2 / (9 * 128), rel=0.02)
  assert all(w.l2 for w in separable((3, 3, 4, 4)).Instantiate().weights().values())


def test_cost_of_conv_in_closed_form():
  params = conv((1, 7, 16, 32), (1, 2))
  cost = params.cls.FPropMeta(params, ArraySpec((4, 10, 20, 16)))
  assert cost.out_shapes == ArraySpec((4, 10, 10, 32))
  assert cost.flops == cost.matmul_flops == 2 * (4 * 10 * 10 * 32) * (7 * 16)
  assert cost.param_count == 7 * 16 * 32


def test_cost_of_separable_conv_in_closed_form():
  params = separable((3, 3, 16, 32), stride=2)
  cost = params.cls.FPropMeta(params, ArraySpec((1, 9, 9, 16)))
  assert cost.matmul_flops == 2 * 25 * (9 * 16 + 16 * 32)
  assert cost.param_count == 9 * 16 + 16 * 32
  assert cost.activation_bytes == 4 * 25 * 16


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"filter_shape": (3, 3, 4)}, r"Conv2D.filter_shape = \(3, 3, 4\).* 4 integers"),
    ({"filter_shape": (3, 3, 4, 0)}, "filter_shape"),
    ({"filter_shape": (3, 3, 4, True)}, "filter_shape"),
    ({"filter_stride": (2, 0)}, "filter_stride"),
    ({"filter_stride": 2}, "filter_stride = 2.*tuple of 2"),
    ({"padding": "SAMES"}, "padding = 'SAMES'.*did you mean 'SAME'"),
  ],
)
def test_conv_refuses_bad_settings(settings, message):
  with pytest.raises(ValueError, match=message):
    conv((3, 3, 4, 4)).Set(**settings).Instantiate()


def test_separable_conv_refuses_stride_with_dilation():
  with pytest.raises(ValueError, match="stride = 2, dilation = 2: one of them"):
    separable((3, 3, 4, 4), stride=2, dilation=2).Instantiate()


def test_conv_refuses_maps_that_do_not_fit():
  params = conv((3, 3, 4, 8), padding="VALID")
  with pytest.raises(ValueError, match="conv: got 5 channels, expected 4"):
    Conv2D.FPropMeta(params, ArraySpec((1, 8, 8, 5)))
  with pytest.raises(ValueError, match=r"a window of \(3, 3\) does not fit .*2, 8"):
    Conv2D.FPropMeta(params, ArraySpec((1, 2, 8, 4)))
  with pytest.raises(ValueError, match=r"conv: got shape \(8, 4\)"):
    Conv2D.FPropMeta(params, ArraySpec((8, 4)))
