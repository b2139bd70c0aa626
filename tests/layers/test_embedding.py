import math

import numpy as np
import pytest

from tests.layers.run_layer import call, gradients, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.embedding import Embedding

# sin and cos of angles up to 100 in float32.
ATOL = 1e-5

IDS = np.array([[3, 0, 3, 1], [4, 4, 4, 2]], np.int32)


def _params(**fields):
  return Embedding.Params().Set(vocab_size=5, dim=6, max_length=4).Set(**fields)


def _wave(position, column, dim):
  """Column of section 3.5 of the paper, sines first."""
  half = dim // 2
  angle = position / 10000.0 ** (2 * (column % half) / dim)
  return math.sin(angle) if column < half else math.cos(angle)


def test_vectors_are_scaled_and_get_sinusoids_by_default(tf):
  params = _params()
  values = start_values(params.Instantiate())
  assert list(values) == ["w"]
  waves = np.array([[_wave(t, c, 6) for c in range(6)] for t in range(4)])
  expected = math.sqrt(6.0) * values["w"][IDS] + waves
  np.testing.assert_allclose(call(tf, params, values, IDS), expected, atol=ATOL)


def test_sinusoids_hold_for_long_rows(tf):
  params = _params(vocab_size=1, dim=8, max_length=100)
  ids = np.zeros((1, 100), np.int32)
  y = call(tf, params, {"w": np.zeros((1, 8), np.float32)}, ids)
  waves = [[_wave(t, c, 8) for c in range(8)] for t in range(100)]
  np.testing.assert_allclose(y[0], waves, atol=ATOL)


def test_learned_positions_are_a_table(tf):
  params = _params(positions="learned", max_length=7)
  values = start_values(params.Instantiate())
  assert values["positions"].shape == (7, 6)
  expected = math.sqrt(6.0) * values["w"][IDS] + values["positions"][:4]
  np.testing.assert_allclose(call(tf, params, values, IDS), expected, atol=ATOL)


def test_without_positions_equal_ids_give_equal_vectors(tf):
  params = _params(positions="none")
  values = start_values(params.Instantiate())
  y = call(tf, params, values, IDS)
  np.testing.assert_array_equal(y[0, 0], y[0, 2])
  np.testing.assert_allclose(y, math.sqrt(6.0) * values["w"][IDS], atol=ATOL)


def test_the_gradient_adds_up_repeated_ids(tf):
  params = _params(positions="none")
  values = start_values(params.Instantiate())
  run = gradients(tf, params, values, [IDS], 1.0)
  assert isinstance(run.weights["w"], tf.IndexedSlices)
  counts = np.bincount(IDS.ravel(), minlength=5)
  expected = np.repeat(math.sqrt(6.0) * counts[:, None], 6, axis=1)
  dense = tf.convert_to_tensor(run.weights["w"])
  np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_table_starts_with_standard_deviation_of_one_over_root_dim(tf):
  params = _params(vocab_size=500, dim=64)
  table = start_values(params.Instantiate())["w"]
  assert table.std() == pytest.approx(1 / 8, rel=0.02)


def test_dropout_acts_in_training_only(tf):
  params = _params(dropout_keep_prob=0.5, positions="none")
  values = {"w": np.ones((5, 6), np.float32)}
  y = call(tf, params, values, IDS).numpy() / math.sqrt(6.0)
  np.testing.assert_allclose(np.unique(y.round(5)), [0.0, 2.0])
  y = call(tf, params, values, IDS, do_eval=True)
  np.testing.assert_allclose(y, np.full((2, 4, 6), math.sqrt(6.0)), rtol=1e-6)


def test_too_long_rows_are_refused_by_fprop_and_by_its_cost(tf):
  params = _params(name="embedding", max_length=3)
  message = r"embedding: max_length=3, but ids are \(2, 4\)"
  with pytest.raises(ValueError, match=message):
    Embedding.FPropMeta(params, ArraySpec((2, 4), "int32"))
  with pytest.raises(ValueError, match=message):
    call(tf, params, start_values(_params().Instantiate()), tf.constant(IDS))


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("vocab_size", 0, "Embedding.vocab_size = 0"),
    ("positions", "sinus", "did you mean 'sinusoid'"),
    ("dim", 5, "dim=5 is odd"),
    ("dropout_keep_prob", 0.0, "Dropout.keep_prob = 0.0"),
  ],
)
def test_bad_params_are_refused(field, value, message):
  with pytest.raises(ValueError, match=message):
    _params(**{field: value}).Instantiate()
