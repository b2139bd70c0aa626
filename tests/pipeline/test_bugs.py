"""Faults that were there once: each test opens with what went wrong."""

import numpy as np
import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import toy_batches, toy_network
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.lazy import tf as lazy_tf
from tfpipe.nested_map import NestedMap

DENSE, LOSS = toy.Dense.Params(), toy.Regression.Params()


class Weighted(Layer):
  """Has a weight `w` [8, 8]."""

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((8, 8)))


class Spectrum(Weighted):
  def FProp(self, theta, x):
    y = lazy_tf.matmul(x, theta.w)
    return y, lazy_tf.signal.fft(lazy_tf.cast(y, lazy_tf.complex64))


class FromSpectrum(Weighted):
  def FProp(self, theta, x, z):
    return lazy_tf.matmul(lazy_tf.tanh(x), theta.w) + lazy_tf.math.real(
      lazy_tf.signal.ifft(z * z)
    )


class Fan(Layer):
  def FProp(self, theta, x):
    return lazy_tf.sin(x), x, lazy_tf.cos(x) * x


class Mix(Layer):
  def FProp(self, theta, a, b, c):
    return lazy_tf.tanh(a) + b + c, b, c * b


class Close(Layer):
  def FProp(self, theta, a, b, c):
    return a * b + c + a


class Thrice(Layer):
  def FProp(self, theta, x):
    return x, x, x


class Empty(Layer):
  def FProp(self, theta, x):
    return lazy_tf.zeros([0, 8]), x


class Join(Layer):
  def FProp(self, theta, x, y):
    return lazy_tf.tanh(y) + lazy_tf.reduce_sum(x)


class Constant(Layer):
  """Hands on an array too long for its text to show all of it."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("middle", 1.0, "Value of the array's middle.")
    return p

  def FProp(self, theta, x):
    array = np.ones(2000, np.float32)
    array[1000] = self.params.middle
    return x, array


class Middle(Layer):
  def FProp(self, theta, x, array):
    return x * array[1000]


class Random(Layer):
  def FProp(self, theta, x):
    return lazy_tf.nn.dropout(x, 0.5)


class Ragged(Layer):
  def FProp(self, theta, x):
    return lazy_tf.RaggedTensor.from_tensor(x)


class VectorLoss(Layer):
  SIDE_INPUTS = ("weight",)

  def FProp(self, theta, x, side):
    errors = lazy_tf.reduce_sum(x * x, -1)
    return NestedMap(loss=(errors, lazy_tf.reduce_sum(side.weight)))


class AddedVector(Layer):
  def FProp(self, theta, x):
    self.AddLoss(lazy_tf.reduce_sum(x * x, -1))
    return x


class TwiceNormed(Layer):
  def __init__(self, params):
    super().__init__(params)
    self.CreateChild("norm", toy.Norm.Params())

  def FProp(self, theta, x):
    return self.norm.FProp(theta.norm, self.norm.FProp(theta.norm, x) * 2)


def train(tf, network, num_partitions, remat="none"):
  """Trains three steps; five stages and more share four devices."""
  return harness.train(
    tf,
    network,
    3,
    num_partitions=num_partitions,
    num_micro_batches=2,
    remat=remat,
    devices=[f"CPU:{stage % 4}" for stage in range(num_partitions)],
  )


def states(tf, network, cases):
  return [train(tf, network, *case)[0] for case in cases]


EVERY_CUT = [(1, "none"), (1, "layer"), (2, "none"), (5, "cell"), (5, "layer")]


def test_gradients_cross_borders_as_complex_numbers_too(tf):
  """Only floating border tensors got gradients: K > 1 lost the way through the FFT."""
  network = toy_network(DENSE, Spectrum.Params(), FromSpectrum.Params(), DENSE, LOSS)
  reference, *others = states(tf, network, EVERY_CUT)
  for state in others:
    harness.assert_close(state, reference)


@pytest.mark.parametrize(
  "layers",
  [
    (Fan.Params(), Mix.Params(), Close.Params()),
    (Thrice.Params(), Mix.Params(), Close.Params()),
  ],
  ids=["an input among the outputs", "one input as every output"],
)
def test_bits_do_not_depend_on_where_outputs_alias_inputs(tf, layers):
  """Three gradients of one tensor were summed in another order at a border."""
  network = toy_network(DENSE, *layers, LOSS)
  reference, *others = states(tf, network, EVERY_CUT)
  for case, state in zip(EVERY_CUT[1:], others, strict=True):
    assert not harness.differences(state, reference), case


def test_an_output_without_elements_can_be_recomputed(tf):
  """The tie of a recomputation read the first element of an empty gradient."""
  network = toy_network(DENSE, Empty.Params(), Join.Params(), DENSE, LOSS)
  plain, layered = states(tf, network, [(1, "none"), (5, "layer")])
  assert not harness.differences(layered, plain)


def test_cells_with_other_constants_are_other_functions(tf):
  """The text of a long array leaves its middle out: two cells shared a trace."""
  layers = [
    part
    for middle in (2.0, 0.5)
    for part in (DENSE, Constant.Params().Set(middle=middle), Middle.Params())
  ]
  network = toy_network(*layers, LOSS)
  losses = [train(tf, network, num_partitions)[1] for num_partitions in (1, 7)]
  assert losses[0] == losses[1]


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (
      Random.Params(),
      r"op .*RandomUniform.* has state; FProp and its gradient must be functions",
    ),
    (TwiceNormed.Params(), r"Norm 'norm' hands out moments twice"),
    (AddedVector.Params(), r"^AddedVector: a loss must be .*got shape \(\d,\)"),
  ],
)
def test_what_would_be_wrong_without_a_word_is_refused(tf, layer, message):
  """Another mask when recomputed; the first moments lost; a vector for a loss."""
  with pytest.raises(ValueError, match=message):
    harness.start(tf, toy_network(DENSE, layer, DENSE, LOSS), num_micro_batches=2)


def test_ragged_borders_are_refused(tf):
  """They were taken for one dense tensor."""
  network = toy_network(DENSE, Ragged.Params(), DENSE, LOSS)
  with pytest.raises(TypeError, match="RaggedTensor cannot cross the border"):
    harness.start(tf, network)


def test_a_loss_that_is_no_pair_of_scalars_is_refused(tf):
  """A loss per example was differentiated as its sum and printed as an array."""
  with pytest.raises(ValueError, match=r"metric 'loss' must be a pair \(sum, weight\)"):
    harness.start(tf, toy_network(DENSE, VectorLoss.Params()))


def test_names_that_would_share_a_weight_are_refused(tf):
  """`a/b` with weight w, and `a` with child b and weight w, were one variable."""
  layer = Weighted(Weighted.Params().Set(name="one"))
  with pytest.raises(ValueError, match="the name 'w' of a child, weight or seed"):
    layer.CreateVariable("w", WeightParams((8, 8)))
  layer.CreateChildren("b", [DENSE, DENSE])
  with pytest.raises(ValueError, match="the name 'b_0' of a child"):
    layer.CreateChild("b_0", DENSE)
  named = [DENSE.Copy().Set(name="a/b"), LOSS.Copy().Set(name="loss")]
  with pytest.raises(ValueError, match="layer 0 has the name 'a/b'"):
    harness.make_pipeline(tf, named)


def test_moments_that_overflow_do_not_get_into_the_moving_ones(tf):
  """The loss stayed finite, the update was applied and the moving variance was inf."""
  training = harness.start(
    tf,
    toy_network(toy.Norm.Params(), DENSE, LOSS),
    harness.make_learner(nonfinite="skip"),
    num_micro_batches=2,
  )
  before = training.state()
  batch = toy_batches(1)[0]
  batch["x"][0, 0] = 1e25
  outputs = training.step(batch)
  assert np.isfinite(outputs["micro_batch_losses"]).all()
  assert not outputs["finite"]
  assert outputs["update"]["skipped"]
  changed = harness.differences(training.state(), before)
  assert changed == ["learner/consecutive_skips"]
