import numpy as np
import pytest

from tests.layers.run_layer import call, gradients, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.attention import MultiHeadAttention, causal_mask

# Two products of 8 numbers and a softmax in float32.
ATOL = 1e-5


@pytest.fixture
def params():
  return MultiHeadAttention.Params().Set(dim=8, num_heads=2)


@pytest.fixture
def x():
  return np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)


def _keras(tf, values):
  """Gives Keras's layer of 2 heads of width 4 with the same weights."""
  layer = tf.keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
  layer.build((2, 5, 8), (2, 5, 8))
  weights = []
  for w, b in zip(
    np.split(values["qkv/w"], 3, 1), np.split(values["qkv/b"], 3), strict=True
  ):
    weights += [w.reshape(8, 2, 4), b.reshape(2, 4)]
  layer.set_weights([*weights, values["output/w"].reshape(2, 4, 8), values["output/b"]])
  return layer


def test_value_and_gradient_are_those_of_keras(tf, params, x):
  values = start_values(params.Instantiate())
  dy = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
  run = gradients(tf, params, values, [x], dy)
  keras = _keras(tf, values)
  with tf.GradientTape() as tape:
    inputs = tf.constant(x)
    tape.watch(inputs)
    expected = keras(inputs, inputs, use_causal_mask=True)
    loss = tf.reduce_sum(expected * dy)
  names = [w.path.split("/")[-2:] for w in keras.trainable_weights]
  assert [name[0] for name in names[::2]] == [
    "query",
    "key",
    "value",
    "attention_output",
  ]
  dx, *dw = tape.gradient(loss, [inputs, *[w.value for w in keras.trainable_weights]])
  np.testing.assert_allclose(run.output, expected, atol=ATOL)
  np.testing.assert_allclose(run.inputs[0], dx, atol=ATOL)
  kernels = np.concatenate([w.numpy().reshape(8, 8) for w in dw[0:6:2]], 1)
  biases = np.concatenate([b.numpy().reshape(8) for b in dw[1:6:2]])
  np.testing.assert_allclose(run.weights["qkv/w"], kernels, atol=ATOL)
  np.testing.assert_allclose(run.weights["qkv/b"], biases, atol=ATOL)
  np.testing.assert_allclose(
    run.weights["output/w"], tf.reshape(dw[6], [8, 8]), atol=ATOL
  )


@pytest.mark.parametrize("changed", range(5))
def test_a_position_changes_nothing_before_it(tf, params, x, changed):
  values = start_values(params.Instantiate())
  before = call(tf, params, values, x).numpy()
  x[:, changed] += 3.0
  after = call(tf, params, values, x).numpy()
  np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
  assert (np.abs(before - after)[:, changed:].max(-1) > 1e-3).all()


def test_the_first_position_sees_only_itself(tf, params, x):
  values = start_values(params.Instantiate())
  value = x[:, 0] @ values["qkv/w"][:, 16:] + values["qkv/b"][16:]
  expected = value @ values["output/w"] + values["output/b"]
  y = call(tf, params, values, x)
  np.testing.assert_allclose(y[:, 0], expected, atol=ATOL)


def test_the_future_is_invisible_whatever_its_score(tf, params, x):
  values = start_values(params.Instantiate())
  x[:, 1:] *= 1e15  # scores of 1e30
  run = gradients(tf, params, values, [x], np.float32([1, 0, 0, 0, 0])[:, None])
  alone = call(tf, params, values, x[:, :1])
  np.testing.assert_allclose(run.output[:, :1], alone, atol=ATOL)
  np.testing.assert_array_equal(run.inputs[0][:, 1:], 0.0)


def test_the_mask_is_lower_triangular(tf):
  np.testing.assert_array_equal(
    causal_mask(3), np.float32([[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]])
  )


def test_the_mask_is_not_stored_in_the_graph(tf, params):
  values = start_values(params.Instantiate())
  graph = tf.function(lambda x: call(tf, params, values, x)).get_concrete_function(
    tf.TensorSpec([1, 256, 8])
  )
  weights = sum(value.nbytes for value in values.values())
  assert graph.graph.as_graph_def().ByteSize() < weights + 20_000


def test_it_has_four_matrices_and_four_biases(params):
  shapes = {k: w.shape for k, w in params.Instantiate().weights().items()}
  assert shapes == {
    "qkv/w": (8, 24),
    "qkv/b": (24,),
    "output/w": (8, 8),
    "output/b": (8,),
  }
  spec = ArraySpec((1, 5, 8))
  assert MultiHeadAttention.FPropMeta(params, spec).param_count == 4 * 64 + 4 * 8


def test_the_joint_matrix_starts_like_three_single_ones(tf):
  params = MultiHeadAttention.Params().Set(dim=64, num_heads=1)
  values = start_values(params.Instantiate())
  limit = np.sqrt(6.0 / (64 + 64))
  for name in ("qkv/w", "output/w"):
    assert 0.99 * limit < np.abs(values[name]).max() <= limit


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("num_heads", 3, "num_heads=3 does not divide dim=8"),
    ("num_heads", 0, "MultiHeadAttention.num_heads = 0"),
    ("dim", -8, "MultiHeadAttention.dim = -8"),
    ("output_init_scale", -1.0, "MultiHeadAttention.output_init_scale = -1.0"),
  ],
)
def test_bad_params_are_refused(params, field, value, message):
  with pytest.raises(ValueError, match=message):
    params.Set(**{field: value}).Instantiate()


@pytest.mark.parametrize("shape", [(2, 8), (2, 5, 6)])
def test_inputs_of_another_shape_are_refused(params, shape):
  with pytest.raises(ValueError, match="expected \\[batch, time, dim=8\\]"):
    MultiHeadAttention.FPropMeta(params, ArraySpec(shape))
