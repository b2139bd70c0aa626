"""A small experiment with everything that a checkpoint must hold, and faults on demand.

`--set task.fault=nan` and the like make one layer misbehave in one micro-batch of one
step; `--set input.fault=raise` does it with the input.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tfpipe import experiment, registry
from tfpipe.checks import check_choice, check_count
from tfpipe.cost import LayerCost
from tfpipe.input.base import Reader, Rows
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.layers.base import Layer
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.conv import Conv2D
from tfpipe.layers.dropout import Dropout
from tfpipe.layers.linear import Linear
from tfpipe.layers.pooling import GlobalAvgPool
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import Learner, Momentum
from tfpipe.params import InstantiableParams, Params
from tfpipe.task import Task

LAYER_FAULTS = ("none", "nan", "gradient", "spike", "raise", "build", "spin")
SPIKE = 10.0**6
INPUT_FAULTS = ("none", "raise", "block")
CLASSES, CHANNELS, UNITS = 7, 8, 600


class Faulty(Layer):
  """x → x, but for one fault: [batch, ...] → the same.

  'nan': a NaN in the output; 'gradient': one in the gradient only; 'spike': a loss of
  SPIKE; 'raise': an error of an operation; 'spin': an operation without end; 'build':
  an error in FProp itself.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("fault", "none", f"One of {', '.join(LAYER_FAULTS)}.")
    p.Define("step", 5, "Number of the step with the fault.")
    p.Define("row", 0, "First row of the micro-batch with the fault.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_choice(self, params, "fault", LAYER_FAULTS)
    check_count(self, params, "step", 1)
    check_count(self, params, "row", 0)
    self.CreateSeed()

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Hands x on, or fails."""
    (x,) = inputs
    p = self.params
    if p.fault == "none" or self.do_eval:
      return x
    if p.fault == "build":
      raise ZeroDivisionError("a mistake in FProp")
    hit = (theta.seed[1] + 1 == p.step) & (theta.seed[2] == p.row)
    if p.fault == "nan":
      return x + tf.where(hit, float("nan"), 0.0)
    if p.fault == "gradient":
      # The slope of the root at 0 is infinite, and infinity times 0 is NaN.
      return x + tf.sqrt(tf.where(hit, 0.0 * x, 0.0 * x + 1.0))
    if p.fault == "spike":
      self.AddLoss(tf.where(hit, SPIKE, 0.0))
      return x
    if p.fault == "raise":
      place = tf.where(hit, x.shape[0], 0)
      return x + 0.0 * tf.gather(x, place)
    turns = tf.while_loop(lambda _: hit, lambda i: (i + 1,), (tf.constant(0),))
    return x + 0.0 * tf.cast(turns[0], tf.float32)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost: next to nothing."""
    (x,) = inputs
    return cls.Cost(params, x)


class FaultyTask(Task):
  """Convolution, batch norm, dropout and two matrix products; one layer may fail."""

  INPUT_FIELDS = ("image",)

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("fault", "none", "What layer 'faulty' does; see `Faulty`.")
    p.Define("fault_step", 5, "When.")
    p.Define("fault_row", 0, "Where.")
    return p

  def Layers(self) -> list[InstantiableParams]:
    """Gives the layers."""
    p = self.params
    faulty = Faulty.Params().Set(fault=p.fault, step=p.fault_step, row=p.fault_row)
    layers = {
      "conv": Conv2D.Params().Set(filter_shape=(3, 3, 1, CHANNELS)),
      "norm": BatchNorm.Params().Set(dim=CHANNELS, decay=0.9),
      "faulty": faulty,
      "pool": GlobalAvgPool.Params(),
      "wide": Linear.Params().Set(in_dim=CHANNELS, out_dim=UNITS, activation="relu"),
      "drop": Dropout.Params().Set(keep_prob=0.9),
      "deep": Linear.Params().Set(in_dim=UNITS, out_dim=UNITS, activation="relu"),
      "logits": Linear.Params().Set(in_dim=UNITS, out_dim=CLASSES),
      "loss": ClassifierLoss.Params(),
    }
    return [layer.Set(name=name) for name, layer in layers.items()]


class FaultyInput(SyntheticImageInput):
  """Noise with labels; in one mini-batch reading fails, or never ends."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("fault", "none", f"One of {', '.join(INPUT_FAULTS)}.")
    p.Define("fault_step", 5, "Number of the step whose mini-batch has the fault.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_choice(self, params, "fault", INPUT_FAULTS)
    check_count(self, params, "fault_step", 1)

  def _reader(self) -> Reader:
    read, p = super()._reader(), self.params
    if p.fault == "none":
      return read

    def fail(counter: np.ndarray) -> np.ndarray:
      if counter // p.batch_size + 1 == p.fault_step:
        if p.fault == "raise":
          raise RuntimeError("the disk is gone")
        time.sleep(10**6)
      return counter

    def faulty(rows: Rows) -> dict[str, tf.Tensor]:
      passed = tf.numpy_function(fail, [rows.counters[0]], tf.int64)
      with tf.control_dependencies([passed]):
        return read(rows._replace(ids=tf.identity(rows.ids)))

    return faulty


@registry.Register
class Small(experiment.Experiment):
  """60 steps with dropout, batch norm, momentum, averages and accumulation."""

  def Train(self) -> Params:
    """Gives the training input."""
    return FaultyInput.Params().Set(
      batch_size=8, image_size=8, num_classes=CLASSES, num_examples=53
    )

  def Task(self) -> Params:
    """Gives the task."""
    return FaultyTask.Params().Set(
      learner=Learner.Params().Set(
        optimizer=Momentum.Params(),
        learning_rate=0.05,
        weight_decay_l2=1e-4,
        clip_gradient_norm_to_value=1.0,
        ema_decay=0.9,
        accumulate_steps=2,
      )
    )

  def Model(self) -> Params:
    """Gives the Params of the run."""
    p = super().Model()
    p.pipeline.Set(num_partitions=2, num_micro_batches=4)
    p.train.Set(max_steps=60, log_interval_steps=1, save_interval_steps=5)
    return p
