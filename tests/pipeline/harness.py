"""Trains small networks through the pipeline, for tests of the equalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfpipe import partition, schedule
from tfpipe.layers.base import Layer
from tfpipe.optimizers import Learner, Momentum
from tfpipe.params import InstantiableParams
from tfpipe.pipeline.pipeline import Pipeline

Arrays = Mapping[str, np.ndarray]


def make_learner(**settings) -> Learner:
  """Momentum with clipping, L2 and averages, unless set otherwise."""
  params = Learner.Params().Set(
    optimizer=Momentum.Params(),
    learning_rate=0.05,
    clip_gradient_norm_to_value=1.0,
    weight_decay_l2=1e-3,
    ema_decay=0.9,
  )
  return params.Set(**settings).Instantiate()


def make_pipeline(
  tf,
  params: Sequence[InstantiableParams],
  *,
  num_partitions: int,
  num_micro_batches: int,
  name: str = "gpipe",
  remat: str = "none",
  input_fields: Sequence[str] = ("x",),
  first_device: int = 0,
) -> Pipeline:
  tf.config.optimizer.set_experimental_options(
    {"arithmetic_optimization": False, "remapping": False}
  )
  layers: list[Layer] = [p.Instantiate() for p in params]
  cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
  return Pipeline(
    layers,
    partition.balance([1.0] * len(layers), num_partitions),
    schedule.make(name, num_partitions, num_micro_batches, remat == "cell"),
    cpus[first_device : first_device + num_partitions],
    input_fields=input_fields,
    seed=7,
    remat_layers=remat == "layer",
  )


def specs(tf, batch: Arrays) -> dict:
  return {name: tf.TensorSpec(a.shape, a.dtype) for name, a in batch.items()}


def train(
  tf, pipeline: Pipeline, learner: Learner, batches: Sequence[Arrays]
) -> tuple[dict[str, np.ndarray], list[float]]:
  """Runs a step per batch; gives the whole state and each step's loss."""
  learner.create_state(pipeline.trainable(), pipeline.l2_names())
  function = pipeline.train_function(learner, specs(tf, batches[0]))
  losses = []
  for batch in batches:
    outputs = function({name: tf.constant(a) for name, a in batch.items()})
    total, weight = outputs["metrics"]["loss"]
    losses.append(float(total) / float(weight))
  state = {**pipeline.weights, **learner.state()}
  return {name: variable.numpy() for name, variable in state.items()}, losses


def differences(state: Arrays, reference: Arrays) -> list[str]:
  """Names of the entries that are not equal bit for bit."""
  assert state.keys() == reference.keys()
  return [n for n in reference if state[n].tobytes() != reference[n].tobytes()]
