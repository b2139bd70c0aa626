"""Layers that compute in 16 bits: the equalities, the loss, what is refused."""

import numpy as np
import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import NETWORKS, Network
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import Learner
from tfpipe.optimizers.loss_scale import SCALE

STEPS = 3
# (K, schedule, remat, dtype): the last one splits its backward.
CASES = {
  "transformer": [
    (1, "gpipe", "layer", "bfloat16"),
    (2, "1f1b", "none", "bfloat16"),
    (4, "1f1b", "cell", "bfloat16"),
    (2, "zb_h1", "cell", "bfloat16"),
  ],
  "tokens": [
    (3, "gpipe", "cell", "bfloat16"),
    (4, "1f1b", "layer", "bfloat16"),
    (2, "zb_v", "layer", "bfloat16"),
    (2, "dualpipe_v", "none", "bfloat16"),
    (2, "zb_h1", "none", "float16"),
    (4, "1f1b", "cell", "float16"),
  ],
  "convolutions": [
    (2, "gpipe", "cell", "bfloat16"),
    (4, "1f1b", "none", "bfloat16"),
    (3, "zb_h1", "none", "float16"),
  ],
  "amoebanet": [(3, "1f1b", "cell", "bfloat16")],
}


def _train(tf, network, case):
  number, name, remat, dtype = case
  return harness.train(
    tf,
    NETWORKS[network],
    STEPS,
    num_partitions=number,
    num_micro_batches=2 if network == "amoebanet" else 4,
    name=name,
    remat=remat,
    compute_dtype=dtype,
  )


@pytest.mark.parametrize("network", CASES)
def test_all_is_bit_equal_for_every_cut_schedule_and_remat(tf, network):
  references = {}
  for case in CASES[network]:
    dtype = case[-1]
    if dtype not in references:
      references[dtype] = _train(tf, network, (1, "gpipe", "none", dtype))
    reference, losses = references[dtype]
    assert len(set(losses)) == STEPS
    state, case_losses = _train(tf, network, case)
    assert not harness.differences(state, reference), case
    assert case_losses == losses, case
  for state, _ in references.values():
    assert {value.dtype for value in state.values()} == {
      np.dtype("float32"),
      np.dtype("int64"),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_borders_have_the_dtype_and_sums_have_not(tf, dtype):
  network = NETWORKS["transformer"]
  training = harness.start(
    tf, network, num_partitions=2, num_micro_batches=2, compute_dtype=dtype
  )
  (builder,) = training.pipeline._traced
  first, last = (cell.function for cell in builder._cells)
  assert [spec.dtype.name for spec in tf.nest.flatten(first.out_specs)] == [dtype]
  metrics = tf.nest.flatten(last.out_specs)
  assert {spec.dtype for spec in metrics} == {tf.float32}
  gradients = [layer for cell in builder._gradients for layer in cell._layers]
  assert {g.dtype for layer in gradients for g in layer._dweights} == {tf.float32}
  # Tokens have none.
  assert {g.dtype.name for layer in gradients for g in layer._dxs} == {dtype}
  assert {v.dtype for v in training.pipeline.weights.values()} == {tf.float32}


def test_evaluation_is_that_of_float32_rounded(tf):
  network = NETWORKS["transformer"]
  batch = network.batches(1)[0]
  full, half = (
    harness.start(
      tf, network, num_partitions=2, num_micro_batches=2, compute_dtype=kind
    ).evaluate(batch)
    for kind in ("float32", "bfloat16")
  )
  assert half["loss"] != full["loss"]
  for name in ("loss", "log_perplexity"):
    assert half[name][0] == pytest.approx(full[name][0], rel=0.01)
    assert half[name][1] == full[name][1]


def _without_dropout():
  """Batches that follow from each other whatever the number of the step."""
  dense = toy.Dense.Params()
  layers = NETWORKS["tokens"].layers()[-1].Copy().Set(tied_to="")
  table = NETWORKS["tokens"].layers()[0].Copy().Set(dropout_keep_prob=1.0)
  return Network(
    lambda: toy.named(table, dense, dense, layers), ("ids",), NETWORKS["tokens"].batches
  )


def _learner(scale) -> Learner:
  return harness.make_learner(loss_scale=scale, weight_decay_l2=0.0, learning_rate=1e-4)


@pytest.mark.parametrize("how", [(1, "gpipe", "none"), (2, "1f1b", "cell")])
def test_an_overflow_skips_the_update_and_training_recovers(tf, how):
  number, name, remat = how
  network, steps, first = _without_dropout(), 14, 24
  arguments = {
    "num_partitions": number,
    "num_micro_batches": 2,
    "name": name,
    "remat": remat,
    "compute_dtype": "float16",
  }
  training = harness.start(tf, network, _learner(2.0**first), **arguments)
  before = training.pipeline.weights["layer_1/w"].numpy()
  batch = network.batches(1)[0]
  skipped = 0
  for step in range(steps):
    found = training.step(batch)
    training.learner.check(found["update"])
    if found["update"]["skipped"]:
      assert found["finite"]
      assert skipped == step
      assert found["update"]["loss_scale"] == 2.0 ** (first - skipped)
      assert found["update"]["nonfinite"].any()
      weight = training.pipeline.weights["layer_1/w"].numpy()
      assert weight.tobytes() == before.tobytes()
      skipped += 1
  assert 0 < skipped < steps - 2
  state = training.state()
  assert state["learner/step"] == steps - skipped
  assert state[SCALE] == 2.0 ** (first - skipped)
  # The same as if it had begun with the scale that it has come to.
  other = harness.start(tf, network, _learner(state[SCALE].item()), **arguments)
  for _ in range(steps - skipped):
    assert other.step(batch)["update"]["applied"]
  assert not harness.differences(state, other.state())


def test_a_larger_scale_keeps_gradients_that_float16_would_lose(tf):
  """A loss of weight 1e-8 has gradients below 2^-24 unless it is scaled."""
  network = _without_dropout()
  batch = dict(network.batches(1)[0])
  batch["weights"] = batch["weights"] * np.float32(1e-8)
  norms = {}
  for scale in (1.0, 2.0**20):
    training = harness.start(tf, network, _learner(scale), compute_dtype="float16")
    norms[scale] = training.step(batch)["update"]["grad_norm"]
  full = harness.start(tf, network, _learner(0.0)).step(batch)["update"]["grad_norm"]
  assert norms[2.0**20] == pytest.approx(full, rel=0.02)
  assert norms[1.0] < 0.5 * full


class Stubborn(toy.Plain):
  """Adds a float32 tensor, whatever x is."""

  def FProp(self, theta, x):
    from tfpipe.lazy import tf

    return x + tf.ones(x.shape, tf.float32)


class HalfLoss(toy.Regression):
  """Gives its metrics in the dtype of x."""

  def FProp(self, theta, x, *rest):
    from tfpipe.lazy import tf

    total = tf.reduce_sum(tf.square(tf.matmul(x, theta.w)))
    return NestedMap(loss=(total, tf.ones_like(total)))


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (
      Stubborn,
      r"pipeline\.compute_dtype='bfloat16': layer 'bad' \(Stubborn\) cannot be traced "
      r"in it: .*[^.]\. FProp gets .*tf\.cast\(x, tf\.float32\)",
    ),
    (toy.Regression, r"layer 'bad' \(Regression\) cannot be traced in it: "),
    (HalfLoss, "layer 'bad': metric 'loss' must be a pair .* of float32 scalars"),
    (toy.Norm, r"layer 'bad' \(Norm\) .*: moments must be float32; got bfloat16"),
    (toy.Penalty, r"layer 'bad' \(Penalty\) .*: a loss must be a float32 scalar"),
  ],
)
def test_layers_that_cannot_are_named(tf, layer, message):
  ends = [] if issubclass(layer, toy.Regression) else [toy.Regression.Params()]
  layers = [toy.Dense.Params(), layer.Params().Set(name="bad"), *ends]
  with pytest.raises(ValueError, match=message):
    harness.start(tf, _on_x(layers), compute_dtype="bfloat16")


def _on_x(layers):
  return NETWORKS["dropout"]._replace(layers=lambda: toy.named(*layers))


def test_float16_needs_a_learner_that_scales(tf):
  network = _without_dropout()
  pipeline = harness.make_pipeline(
    tf, network.layers(), input_fields=network.fields, compute_dtype="float16"
  )
  learner = harness.make_learner()
  learner.create_state(pipeline.trainable(), pipeline.l2_names())
  specs = harness.specs(tf, network.batches(1)[0])
  with pytest.raises(ValueError, match="float16 needs a learner that scales the loss"):
    pipeline.train_function(learner, specs)
