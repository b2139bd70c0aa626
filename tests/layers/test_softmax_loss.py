import numpy as np
import pytest

from tests.layers.run_layer import call, start_values
from tfpipe.cost import ArraySpec
from tfpipe.layers.softmax_loss import SoftmaxLoss, cross_entropy
from tfpipe.nested_map import NestedMap

# Sums of a dozen float32 logarithms.
ATOL = 1e-5

LABELS = np.array([[0, 6, 2], [1, 1, 5]], np.int32)
WEIGHTS = np.array([[1.0, 1.0, 0.0], [0.5, 2.0, 1.0]], np.float32)


def _params(**fields):
  return SoftmaxLoss.Params().Set(dim=4, vocab_size=7).Set(**fields)


@pytest.fixture
def x():
  return np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)


def _side(labels=LABELS, weights=WEIGHTS):
  return NestedMap(labels=labels, weights=weights)


def _metrics(logits, smoothing=0.0, labels=LABELS, weights=WEIGHTS):
  """Computes the sums of each metric, position by position, in float64."""
  sums = {"loss": 0.0, "log_perplexity": 0.0, "accuracy": 0.0}
  for place in np.ndindex(labels.shape):
    row = logits[place].astype(np.float64)
    log_p = row - row.max() - np.log(np.exp(row - row.max()).sum())
    target = np.full(len(row), smoothing / len(row))
    target[labels[place]] += 1.0 - smoothing
    sums["loss"] -= weights[place] * (target * log_p).sum()
    sums["log_perplexity"] -= weights[place] * log_p[labels[place]]
    sums["accuracy"] += weights[place] * (row.argmax() == labels[place])
  return sums


def _check(metrics, sums):
  assert set(metrics) == set(sums)
  for name, (total, total_weight) in metrics.items():
    np.testing.assert_allclose(total, sums[name], atol=ATOL, err_msg=name)
    assert float(total_weight) == WEIGHTS.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits_abs_max", [0.0, 0.7])
def test_metrics_are_weighted_sums_over_positions(tf, x, smoothing, logits_abs_max):
  params = _params(label_smoothing=smoothing, logits_abs_max=logits_abs_max)
  values = start_values(params.Instantiate())
  logits = x @ values["w"] + values["b"]
  if logits_abs_max:
    assert np.abs(logits).max() > logits_abs_max
    logits = np.clip(logits, -logits_abs_max, logits_abs_max)
  _check(call(tf, params, values, x, _side()), _metrics(logits, smoothing))


def test_a_tied_matrix_is_the_transposed_table(tf, x):
  params = _params(tied_to="embedding/w")
  weight = params.Instantiate().weights()["w"]
  assert (weight.tied_to, weight.shape) == ("embedding/w", (7, 4))
  table = np.random.default_rng(2).normal(size=(7, 4)).astype(np.float32)
  bias = np.linspace(-1.0, 1.0, 7, dtype=np.float32)
  tied = call(tf, params, {"w": table, "b": bias}, x, _side())
  _check(tied, _metrics(x @ table.T + bias))


def test_a_tied_matrix_is_not_counted_again():
  side = _side(ArraySpec((2, 3), "int32"), ArraySpec((2, 3)))
  x = ArraySpec((2, 3, 4))
  own = SoftmaxLoss.FPropMeta(_params(), x, side)
  tied = SoftmaxLoss.FPropMeta(_params(tied_to="embedding/w"), x, side)
  assert (own.param_count, tied.param_count) == (4 * 7 + 7, 7)


def test_what_has_weight_0_does_not_matter(tf, x):
  params = _params(label_smoothing=0.1)
  values = start_values(params.Instantiate())
  before = call(tf, params, values, x, _side())
  x[0, 2] += 100.0
  labels = LABELS.copy()
  labels[0, 2] = 3
  after = call(tf, params, values, x, _side(labels))
  for name in before:
    assert float(before[name][0]) == float(after[name][0])


def test_weight_0_everywhere_gives_zeros(tf, x):
  params = _params(label_smoothing=0.1, logits_abs_max=0.5)
  values = start_values(params.Instantiate())
  inputs = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(inputs)
    metrics = call(tf, params, values, inputs, _side(weights=np.zeros_like(WEIGHTS)))
  for total, weight in metrics.values():
    assert (float(total), float(weight)) == (0.0, 0.0)
  dx = tape.gradient(metrics.loss[0], inputs)
  np.testing.assert_array_equal(dx, np.zeros_like(x))


def test_beyond_the_clip_no_gradient_flows(tf):
  params = _params(dim=1, vocab_size=3, logits_abs_max=2.0)
  values = {"w": np.float32([[1.0, 5.0, -5.0]]), "b": np.zeros(3, np.float32)}
  weights = {path: tf.constant(value) for path, value in values.items()}
  side = _side(np.int32([[1]]), np.float32([[1.0]]))
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = call(tf, params, weights, np.float32([[[1.0]]]), side).loss[0]
  p = np.exp([1.0, 2.0, -2.0]) / np.exp([1.0, 2.0, -2.0]).sum()
  db = tape.gradient(loss, weights)["b"]
  np.testing.assert_allclose(db, [p[0], 0.0, 0.0], atol=ATOL)


def _both(tf, logits, labels, smoothing, weights):
  """Differentiates a mix of both results of cross_entropy."""
  logits = tf.constant(logits)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    best = tf.argmax(logits, 1, output_type=labels.dtype)
    smoothed, plain = cross_entropy(logits, tf.constant(labels), best, smoothing)
    mix = tf.reduce_sum((2.0 * smoothed + plain) * weights)
  return smoothed, plain, tape.gradient(mix, logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_has_value_and_gradient_of_tensorflows(tf, smoothing):
  rng = np.random.default_rng(3)
  logits = rng.normal(scale=3.0, size=(5, 7)).astype(np.float32)
  labels = np.array([0, 6, 3, 3, 1], np.int64)
  weights = rng.normal(size=5).astype(np.float32)
  smoothed, plain, gradient = _both(tf, logits, labels, smoothing, weights)
  one_hot = np.eye(7, dtype=np.float32)[labels]
  soft = (1.0 - smoothing) * one_hot + smoothing / 7
  xs = tf.constant(logits)
  with tf.GradientTape() as tape:
    tape.watch(xs)
    soft_loss = tf.nn.softmax_cross_entropy_with_logits(soft, xs)
    hard_loss = tf.nn.softmax_cross_entropy_with_logits(one_hot, xs)
    mix = tf.reduce_sum((2.0 * soft_loss + hard_loss) * weights)
  np.testing.assert_allclose(smoothed, soft_loss, atol=ATOL)
  np.testing.assert_allclose(plain, hard_loss, atol=ATOL)
  np.testing.assert_allclose(gradient, tape.gradient(mix, xs), atol=ATOL)


def test_huge_logits_stay_finite(tf):
  logits = np.float32([[1e30, -1e30, 0.0], [1e4, 1e4, 1e4]])
  smoothed, plain, gradient = _both(tf, logits, np.int32([0, 2]), 0.1, 1.0)
  np.testing.assert_allclose(plain, [0.0, np.log(3.0)], atol=ATOL)
  assert np.isfinite(smoothed).all()
  assert np.isfinite(gradient).all()


@pytest.mark.parametrize("common", [0.0, 1e4, -1e4, 1e6, 2.0**100])
def test_what_all_logits_have_in_common_costs_no_digit(tf, common):
  step = max(1.0, np.spacing(np.float32(abs(common))))
  logits = np.float32(common) - step * np.float32([[0.0, 1.0, 3.0]])
  log_sum = np.log(np.exp([0.0, -step, -3 * step]).sum())
  smoothed, plain, _ = _both(tf, logits, np.int32([1]), 0.3, 1.0)
  np.testing.assert_allclose(plain, [step + log_sum], rtol=1e-6)
  expected = 0.7 * step + 0.3 * (0.0 + 1.0 + 3.0) / 3 * step + log_sum
  np.testing.assert_allclose(smoothed, [expected], rtol=1e-6)


def test_no_one_hot_labels_are_made(tf):
  params = _params(label_smoothing=0.1)
  values = start_values(params.Instantiate())

  @tf.function(autograph=False)
  def gradient(x, labels, weights):
    with tf.GradientTape() as tape:
      tape.watch(x)
      loss = call(tf, params, values, x, _side(labels, weights)).loss[0]
    return tape.gradient(loss, x)

  place = tf.TensorSpec([2, 3])
  specs = [tf.TensorSpec([2, 3, 4]), tf.TensorSpec([2, 3], tf.int32), place]
  graph = gradient.get_concrete_function(*specs).graph
  assert "OneHot" not in {op.type for op in graph.get_operations()}


def test_metrics_are_scalars_and_loss_is_among_them(tf, x):
  params = _params()
  side = _side(ArraySpec((2, 3), "int32"), ArraySpec((2, 3)))
  shapes = SoftmaxLoss.FPropMeta(params, ArraySpec((2, 3, 4)), side).out_shapes
  metrics = call(tf, params, start_values(params.Instantiate()), x, _side())
  assert set(shapes) == set(metrics) == {"loss", "log_perplexity", "accuracy"}
  for name, pair in metrics.items():
    assert [t.shape for t in pair] == [spec.shape for spec in shapes[name]]


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("vocab_size", 0, "SoftmaxLoss.vocab_size = 0"),
    ("label_smoothing", 1.0, r"SoftmaxLoss.label_smoothing = 1.0"),
    ("logits_abs_max", -1.0, "SoftmaxLoss.logits_abs_max = -1.0"),
  ],
)
def test_bad_params_are_refused(field, value, message):
  with pytest.raises(ValueError, match=message):
    _params(**{field: value}).Instantiate()


def test_inputs_that_do_not_fit_are_refused():
  side = _side(ArraySpec((2, 3), "int32"), ArraySpec((2, 4)))
  with pytest.raises(ValueError, match=r"softmax: weights are \(2, 4\)"):
    SoftmaxLoss.FPropMeta(_params(name="softmax"), ArraySpec((2, 3, 4)), side)
  side.weights = ArraySpec((2, 3))
  with pytest.raises(ValueError, match=r"softmax: dim=4, but the input is"):
    SoftmaxLoss.FPropMeta(_params(name="softmax"), ArraySpec((2, 3, 5)), side)
