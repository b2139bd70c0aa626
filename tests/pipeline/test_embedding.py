"""Sparse gradients: repeated ids count in sum, as in a dense product."""

import numpy as np

from tests.pipeline import harness, toy
from tests.pipeline.networks import DIM, LENGTH, ROWS, VOCAB, Network, text_batches
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.embedding import Embedding
from tfpipe.layers.softmax_loss import SoftmaxLoss
from tfpipe.lazy import tf as lazy_tf
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import SGD


class OneHot(Layer):
  """The same table, as a product with one-hot rows: its gradient is dense."""

  def __init__(self, params):
    super().__init__(params)
    self.CreateVariable("w", WeightParams((VOCAB, DIM)))

  def FProp(self, theta, ids):
    return lazy_tf.matmul(lazy_tf.one_hot(ids, VOCAB), theta.w) * DIM**0.5


class Total(Layer):
  """The weighted sum of x as loss: the gradient of a row is the weight of its ids."""

  SIDE_INPUTS = ("weights",)

  def FProp(self, theta, x, side):
    total = lazy_tf.reduce_sum(x * side.weights[..., None])
    return NestedMap(loss=(total, lazy_tf.reduce_sum(side.weights)))


def _network(first, tied):
  layers = [
    first.Copy().Set(name="embedding"),
    toy.Dense.Params(),
    SoftmaxLoss.Params().Set(
      dim=DIM, vocab_size=VOCAB, tied_to="embedding/w" if tied else ""
    ),
  ]
  return Network(lambda: toy.named(*layers), ("ids",), _repeating)


def _repeating(steps):
  """Text in which every id occurs many times, in rows and between them."""
  batches = text_batches(steps)
  for batch in batches:
    batch["ids"] %= 4
    batch["labels"] %= 4
  return batches


SPARSE = Embedding.Params().Set(
  vocab_size=VOCAB, dim=DIM, max_length=LENGTH, positions="none"
)


def test_norm_clipping_and_update_equal_those_of_a_dense_gradient(tf):
  for tied in (False, True):
    reports, states = [], []
    for first, num_micro_batches in ((SPARSE, 4), (OneHot.Params(), 1)):
      training = harness.start(
        tf,
        _network(first, tied),
        harness.make_learner(clip_gradient_norm_to_value=0.1),
        num_partitions=3,
        num_micro_batches=num_micro_batches,
      )
      # Embeddings start otherwise than other weights.
      table = training.pipeline.weights["embedding/w"]
      table.assign(np.linspace(-1, 1, VOCAB * DIM).reshape(VOCAB, DIM))
      training.learner.state()["ema/embedding/w"].assign(table)
      updates = [training.step(batch)["update"] for batch in _repeating(2)]
      reports.append([(u["grad_norm"], u["clip_factor"]) for u in updates])
      states.append(training.state())
    assert all(factor < 1 for _, factor in reports[0])
    np.testing.assert_allclose(reports[0], reports[1], rtol=1e-5)
    harness.assert_close(*states)


def test_the_gradient_of_a_row_is_the_sum_over_its_occurrences(tf):
  layers = toy.named(SPARSE.Copy().Set(name="embedding"), Total.Params())
  network = Network(lambda: layers, ("ids",), text_batches)
  learner = harness.make_learner(
    optimizer=SGD.Params(),
    learning_rate=1.0,
    clip_gradient_norm_to_value=0.0,
    weight_decay_l2=0.0,
    ema_decay=0.0,
  )
  training = harness.start(
    tf, network, learner, num_partitions=2, num_micro_batches=4, remat="cell"
  )
  (batch,) = network.batches(1)
  batch["ids"][:, :3] = 7
  before = training.state()["embedding/w"]
  training.step(batch)
  moved = before - training.state()["embedding/w"]
  weight_of_id = np.bincount(
    batch["ids"].ravel(), batch["weights"].ravel(), minlength=VOCAB
  )
  assert weight_of_id.max() > ROWS
  expected = weight_of_id / batch["weights"].sum() * DIM**0.5
  np.testing.assert_allclose(moved, np.tile(expected[:, None], DIM), atol=1e-6)
  # Rows without an occurrence stay as they are.
  assert (moved[weight_of_id == 0] == 0).all()
