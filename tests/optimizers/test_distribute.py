"""Under tf.distribute: one exchange per update, replicas equal to one device."""

from collections import Counter

import numpy as np
import pytest

from tests.optimizers.training import Training, assert_same_bits
from tfpipe.optimizers import Adam, Learner

WEIGHTS = {
  "kernel": np.linspace(-1, 1, 6).reshape(3, 2),
  "table": np.linspace(1, 2, 8).reshape(4, 2),
}
SETTINGS = {
  "optimizer": Adam.Params(),
  "learning_rate": 0.05,
  "clip_gradient_norm_to_value": 0.5,
  "weight_decay_l2": 0.01,
  "ema_decay": 0.9,
  "nonfinite": "skip",
}
# Float32 sums of two halves against one sum, over a few updates.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def loss_sums(tf, weights, x, ids, y):
  """Gradients of the summed loss of a linear model with an embedding."""
  with tf.GradientTape() as tape:
    out = x @ weights["kernel"] + tf.gather(weights["table"], ids)
    loss = tf.reduce_sum(tf.square(out - y))
  return tape.gradient(loss, weights)


def batches(steps, examples=8):
  rng = np.random.default_rng(0)
  for _ in range(steps):
    yield (
      rng.normal(size=(examples, 3)).astype(np.float32),
      rng.integers(0, 4, size=examples),
      rng.normal(size=(examples, 2)).astype(np.float32),
    )


class Replicated:
  """The model with a learner under a strategy: MirroredStrategy on two CPUs, or one."""

  def __init__(self, tf, cpus, strategy=None, **settings):
    self._tf = tf
    self.strategy = strategy or tf.distribute.MirroredStrategy(cpus[:2])
    self.learner = Learner.Params().Set(**settings).Instantiate()
    with self.strategy.scope():
      self.weights = {
        name: tf.Variable(np.asarray(value, np.float32))
        for name, value in WEIGHTS.items()
      }
      self.learner.create_state(self.weights, ["kernel"])
    self.function = tf.function(self._run, autograph=False)

  def _run(self, batch):
    return self.strategy.run(self._replica, args=(batch,))

  def _replica(self, batch):
    x, ids, y = batch
    sums = loss_sums(self._tf, self.weights, x, ids, y)
    return self.learner.apply(sums, self._tf.shape(x)[0])

  def shares(self, batch):
    """Gives each replica its share of a batch."""
    number = self.strategy.num_replicas_in_sync

    def share(context):
      rows = slice(context.replica_id_in_sync_group, None, number)
      return tuple(self._tf.constant(part[rows]) for part in batch)

    return self.strategy.experimental_distribute_values_from_function(share)

  def step(self, batch):
    metrics = self.function(self.shares(batch))
    local = self.strategy.experimental_local_results
    return {name: local(value)[0].numpy() for name, value in metrics.items()}

  def variables(self):
    return self.weights | self.learner.state()

  def values(self, replica):
    local = self.strategy.experimental_local_results
    return {
      name: local(variable)[replica].numpy()
      for name, variable in self.variables().items()
    }


@pytest.mark.parametrize("accumulate_steps", [1, 2])
def test_replicas_equal_one_device_with_the_full_batch(tf, cpus, accumulate_steps):
  settings = {"accumulate_steps": accumulate_steps, **SETTINGS}
  replicated = Replicated(tf, cpus, **settings)
  single = Training(tf, WEIGHTS, ("kernel",), **settings)
  for batch in batches(4):
    tensors = [tf.constant(part) for part in batch]
    expected = single.step(loss_sums(tf, single.weights, *tensors), weight=8.0)
    metrics = replicated.step(batch)
    for name, value in expected.items():
      np.testing.assert_allclose(metrics[name], value, **TOLERANCE, err_msg=name)
  first, second = replicated.values(0), replicated.values(1)
  for name, value in single.values().items():
    np.testing.assert_allclose(first[name], value, **TOLERANCE, err_msg=name)
    np.testing.assert_array_equal(second[name], first[name])


@pytest.mark.parametrize("kind", ["OneDeviceStrategy", "MultiWorkerMirroredStrategy"])
def test_a_strategy_of_one_replica_changes_no_bit(tf, cpus, kind):
  if kind == "OneDeviceStrategy":
    strategy = tf.distribute.OneDeviceStrategy(cpus[1])
  else:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # of one worker
  assert strategy.num_replicas_in_sync == 1
  replicated = Replicated(tf, cpus, strategy, **SETTINGS)
  single = Training(tf, WEIGHTS, ("kernel",), **SETTINGS)
  for batch in batches(3):
    tensors = [tf.constant(part) for part in batch]
    expected = single.step(loss_sums(tf, single.weights, *tensors), weight=8.0)
    assert_same_bits(replicated.step(batch), expected)
  assert_same_bits(replicated.values(0), single.values())


def collectives(graph):
  """Counts collective ops outside and inside the functions of a graph."""
  definition = graph.as_graph_def()
  outside = Counter(node.op for node in definition.node)
  inside = Counter(
    node.op for function in definition.library.function for node in function.node_def
  )
  return [
    sum(count for op, count in counts.items() if op.startswith("CollectiveReduce"))
    for counts in (outside, inside)
  ]


def test_replicas_exchange_one_pack_per_update_and_none_in_between(tf, cpus):
  batch = next(batches(1))
  for accumulate_steps, expected in (1, [2, 0]), (2, [0, 2]):
    replicated = Replicated(tf, cpus, accumulate_steps=accumulate_steps, **SETTINGS)
    concrete = replicated.function.get_concrete_function(replicated.shares(batch))
    # One pack of all sums in each of two replicas, in the branch that updates.
    assert collectives(concrete.graph) == expected


def test_nonfinite_gradient_of_one_replica_skips_the_update_on_all(tf, cpus):
  replicated = Replicated(tf, cpus, **SETTINGS)
  good, bad = batches(2)
  replicated.step(good)
  before = [replicated.values(replica) for replica in (0, 1)]
  bad[0][1, 1] = np.nan
  metrics = replicated.step(bad)
  assert metrics["skipped"]
  assert metrics["nonfinite"].all()
  for replica in (0, 1):
    after = replicated.values(replica)
    assert after.pop("learner/consecutive_skips") == 1
    for name, value in after.items():
      np.testing.assert_array_equal(value, before[replica][name])


def test_saved_accumulators_are_the_sums_over_replicas(tf, cpus):
  settings = {"accumulate_steps": 2, **SETTINGS}
  straight, resumed = Replicated(tf, cpus, **settings), Replicated(tf, cpus, **settings)
  first, second = batches(2)
  straight.step(first)
  saved = {name: variable.numpy() for name, variable in straight.variables().items()}
  total = straight.values(0)["accumulators/kernel"]
  total = total + straight.values(1)["accumulators/kernel"]
  np.testing.assert_array_equal(saved["accumulators/kernel"], total)
  assert saved["learner/accumulated_weight"] == 8
  for name, variable in resumed.variables().items():
    variable.assign(saved[name])
  assert straight.step(second)["applied"]
  assert resumed.step(second)["applied"]
  expected = straight.values(0)
  for name, value in resumed.values(0).items():
    np.testing.assert_allclose(value, expected[name], **TOLERANCE, err_msg=name)


def test_learner_refuses_to_work_outside_its_strategy(tf, cpus):
  replicated = Replicated(tf, cpus, **SETTINGS)
  sums = {name: tf.zeros(np.shape(value)) for name, value in WEIGHTS.items()}
  with pytest.raises(ValueError, match=r"runs under None, .*MirroredStrategy"):
    replicated.learner.apply(sums, tf.constant(1.0))
  with (
    replicated.strategy.scope(),
    pytest.raises(ValueError, match=r"in the function of strategy\.run"),
  ):
    replicated.learner.apply(sums, tf.constant(1.0))
  outside = {"kernel": tf.Variable([1.0])}
  learner = Learner.Params().Instantiate()
  with (
    replicated.strategy.scope(),
    pytest.raises(ValueError, match="created in the scope of the same strategy"),
  ):
    learner.create_state(outside)


def test_learner_refuses_a_strategy_it_was_not_tried_with(tf):
  strategy = tf.distribute.experimental.CentralStorageStrategy()
  with (
    strategy.scope(),
    pytest.raises(ValueError, match=r"CentralStorageStrategy; it supports Mirrored"),
  ):
    Learner.Params().Instantiate().create_state({"kernel": tf.Variable([1.0])})
