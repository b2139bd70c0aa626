import numpy as np
import pytest

from tests.layers.run_layer import gradients
from tfpipe.layers.base import tracing
from tfpipe.layers.dropout import Dropout, DropPath
from tfpipe.layers.weight_init import name_key

BATCH, KEEP = 8, 0.75
SHAPE = (BATCH, 6, 5)
ONES = np.ones(SHAPE, np.float32)


def dropout(**settings):
  return Dropout.Params().Set(name="drop", **settings)


def drop_path(**settings):
  return DropPath.Params().Set(name="drop", total_steps=100, **settings)


def run(tf, params, *inputs, name="a", step=100, example=0, do_eval=False):
  layer = params.Instantiate()
  seed = tf.constant([name_key(name), step, example], tf.int64)
  theta = layer.Theta(dict.fromkeys(layer.seeds(), seed))
  with tracing(do_eval=do_eval):
    return layer.FProp(theta, *inputs)


def masks(tf, params, **context):
  """What becomes of ones: 0 or 1 / keep."""
  if params.cls is Dropout:
    return run(tf, params, tf.constant(ONES), **context).numpy()
  return run(tf, params, tf.constant(ONES), **context)[0].numpy()


@pytest.mark.parametrize("params", [dropout(keep_prob=KEEP), drop_path(keep_prob=KEEP)])
def test_masks_are_pure_functions_of_name_step_and_example(tf, params):
  mask = masks(tf, params)
  np.testing.assert_array_equal(mask, masks(tf, params))
  assert (mask != masks(tf, params, name="b")).any()
  assert (mask != masks(tf, params, step=101)).any()
  assert (mask != masks(tf, params, example=BATCH)).any()


@pytest.mark.parametrize("params", [dropout(keep_prob=KEEP), drop_path(keep_prob=KEEP)])
@pytest.mark.parametrize("num_micro_batches", [2, 4, 8])
def test_masks_of_micro_batches_make_that_of_the_batch(tf, params, num_micro_batches):
  size = BATCH // num_micro_batches
  parts = []
  for m in range(num_micro_batches):
    y = run(tf, params, tf.constant(ONES[:size]), example=m * size)
    parts.append(y[0] if isinstance(y, tuple) else y)
  np.testing.assert_array_equal(np.concatenate(parts), masks(tf, params))


@pytest.mark.parametrize("params", [dropout(keep_prob=KEEP), drop_path(keep_prob=KEEP)])
def test_nothing_is_dropped_in_evaluation(tf, params):
  np.testing.assert_array_equal(masks(tf, params, do_eval=True), ONES)


@pytest.mark.parametrize("params", [dropout(), drop_path()])
def test_nothing_is_dropped_and_no_seed_wanted_by_default(tf, params):
  assert params.Instantiate().seeds() == []
  np.testing.assert_array_equal(masks(tf, params), ONES)


def test_dropout_keeps_the_expected_share_and_scales_it(tf):
  x = tf.ones([64, 1000])
  y = run(tf, dropout(keep_prob=KEEP), x).numpy()
  assert set(np.unique(y)) == {0, np.float32(1 / KEEP)}
  # 64,000 draws: a standard deviation of the share is 0.0017.
  assert (y > 0).mean() == pytest.approx(KEEP, abs=0.01)


def test_the_gradient_of_dropout_has_the_mask_of_its_forward(tf):
  run = gradients(tf, dropout(keep_prob=KEEP), {}, [ONES], ONES)
  np.testing.assert_array_equal(run.output, run.inputs[0])


def test_dropout_of_a_huge_value_leaves_no_nan(tf):
  x = tf.fill([4, 100], np.float32(np.inf))
  y = run(tf, dropout(keep_prob=0.5), x).numpy()
  assert set(np.unique(y)) == {0, np.inf}


def test_drop_path_drops_whole_examples(tf):
  mask = masks(tf, drop_path(keep_prob=0.5)).reshape(BATCH, -1)
  assert (mask == mask[:, :1]).all()
  assert set(np.unique(mask)) == {0, 2}


@pytest.mark.parametrize(
  ("step", "keep"), [(0, 1.0), (25, 0.9), (50, 0.8), (100, 0.6), (5000, 0.6)]
)
def test_drop_path_keeps_less_as_time_goes_by(tf, step, keep):
  params = drop_path(keep_prob=0.6, num_paths=1)
  (y,) = run(tf, params, tf.ones([20000, 1]), step=step)
  y = y.numpy()
  np.testing.assert_allclose(y[y > 0], 1 / keep, rtol=1e-6)
  # 20,000 draws: a standard deviation of the share is at most 0.0035.
  assert (y > 0).mean() == pytest.approx(keep, abs=0.015)


def test_paths_are_dropped_independently(tf):
  x = tf.ones([20000, 1])
  first, second = run(tf, drop_path(keep_prob=0.5, num_paths=2), x, x)
  both = ((first.numpy() > 0) & (second.numpy() > 0)).mean()
  assert both == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 1.5, -0.5])
@pytest.mark.parametrize("cls", [Dropout, DropPath])
def test_probabilities_outside_0_to_1_are_refused(cls, value):
  with pytest.raises(ValueError, match=f"{cls.__name__}.keep_prob = {value}"):
    cls.Params().Set(keep_prob=value).Instantiate()


@pytest.mark.parametrize("name", ["total_steps", "num_paths"])
def test_drop_path_refuses_counts_below_1(name):
  with pytest.raises(ValueError, match=f"DropPath.{name} = 0"):
    drop_path().Set(**{name: 0}).Instantiate()
