"""Trains small networks through the pipeline, for its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.pipeline.networks import Network
from tfpipe import partition, schedule
from tfpipe.layers.base import Layer
from tfpipe.optimizers import Learner, Momentum
from tfpipe.params import InstantiableParams
from tfpipe.pipeline import placement
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.pipeline import Pipeline

Arrays = Mapping[str, np.ndarray]

SEED = 7
LEARNING_RATE = 0.05
MOMENTUM = 0.9
CLIP_NORM = 1.0
L2 = 1e-3
EMA_DECAY = 0.9


def make_learner(**settings) -> Learner:
  """Momentum with clipping, L2 and averages, unless set otherwise."""
  params = Learner.Params().Set(
    optimizer=Momentum.Params().Set(momentum=MOMENTUM),
    learning_rate=LEARNING_RATE,
    clip_gradient_norm_to_value=CLIP_NORM,
    weight_decay_l2=L2,
    ema_decay=EMA_DECAY,
  )
  return params.Set(**settings).Instantiate()


def make_pipeline(
  tf,
  params: Sequence[InstantiableParams],
  *,
  num_partitions: int = 1,
  num_micro_batches: int = 1,
  name: str = "gpipe",
  remat: str = "none",
  input_fields: Sequence[str] = ("x",),
  first_device: int = 0,
  lengths: Sequence[int] = (),
  devices: Sequence[str] = (),
  seed: int = SEED,
  xla: bool = False,
  serial: bool = False,
  whole: bool = False,
  compute_dtype: str = "float32",
  **options: int,
) -> Pipeline:
  """Cuts layers evenly, or by `lengths`; stages go to CPUs from `first_device` on.

  `num_partitions` devices hold as many stages as the schedule has; `options` are its.
  """
  placement.keep_bits()
  layers: list[Layer] = [p.Instantiate() for p in params]
  cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
  made = schedule.make(
    name, num_partitions, num_micro_batches, remat == "cell", **options
  )
  return Pipeline(
    layers,
    partition.explicit(len(layers), lengths)
    if lengths
    else partition.balance([1.0] * len(layers), made.num_stages),
    made,
    devices or cpus[first_device : first_device + num_partitions],
    input_fields=input_fields,
    seed=seed,
    remat_layers=remat == "layer",
    execution=Execution(serial=serial, xla=xla, whole=whole),
    compute_dtype=compute_dtype,
  )


def specs(tf, batch: Arrays) -> dict:
  return {name: tf.TensorSpec(a.shape, a.dtype) for name, a in batch.items()}


class Training:
  """A pipeline with its learner and its traced step."""

  def __init__(
    self, tf, pipeline: Pipeline, learner: Learner, batch: Arrays, timed: bool = False
  ) -> None:
    self._tf = tf
    self.pipeline = pipeline
    self.learner = learner
    learner.create_state(
      pipeline.trainable(), pipeline.l2_names(), scales_loss=pipeline.scales_loss
    )
    self.function = pipeline.train_function(learner, specs(tf, batch), timed=timed)

  def step(self, batch: Arrays) -> dict:
    """Trains on a mini-batch; gives what the step reports, as arrays."""
    return call(self._tf, self.function, batch)

  def evaluate(self, batch: Arrays) -> dict[str, tuple[float, float]]:
    """Traces evaluation and gives its metrics on one batch."""
    function = self.pipeline.eval_function(specs(self._tf, batch))
    return call(self._tf, function, batch)

  def variables(self) -> dict:
    """All weights and the learner's state."""
    return {**self.pipeline.weights, **self.learner.state()}

  def state(self) -> dict[str, np.ndarray]:
    """Copies of the values of `variables`."""
    return {name: variable.numpy() for name, variable in self.variables().items()}


def call(tf, function, batch: Arrays):
  outputs = function({name: tf.constant(a) for name, a in batch.items()})
  return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)


def start(
  tf, network: Network, learner: Learner | None = None, *, timed: bool = False, **how
) -> Training:
  """Makes a network's pipeline and traces its step; `how` as of `make_pipeline`."""
  pipeline = make_pipeline(tf, network.layers(), input_fields=network.fields, **how)
  batch = network.batches(1)[0]
  return Training(tf, pipeline, learner or make_learner(), batch, timed)


def train(
  tf, network: Network, steps: int, learner: Learner | None = None, **how
) -> tuple[dict[str, np.ndarray], list[float]]:
  """Trains a network; gives the whole state and the loss of each step."""
  training = start(tf, network, learner, **how)
  losses = []
  for batch in network.batches(steps):
    total, weight = training.step(batch)["metrics"]["loss"]
    losses.append(float(total) / float(weight))
  return training.state(), losses


def differences(state: Arrays, reference: Arrays) -> list[str]:
  """Names of the entries that are not equal bit for bit."""
  assert state.keys() == reference.keys()
  return [n for n in reference if state[n].tobytes() != reference[n].tobytes()]


def assert_close(state: Arrays, reference: Arrays) -> None:
  """Asserts equality up to the rounding of float32 sums in another order."""
  for name, expected in reference.items():
    np.testing.assert_allclose(
      state[name], expected, rtol=2e-5, atol=2e-6, err_msg=name
    )
