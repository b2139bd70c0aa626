"""Batch normalization (Ioffe and Szegedy, 2015), with GPipe's bookkeeping.

Training normalizes a micro-batch by its own moments. The moving averages that
evaluation uses step once per mini-batch, outside, with the moments pooled over its
micro-batches (GPipe, section 2.3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfpipe.checks import check_count, check_number
from tfpipe.cost import LayerCost
from tfpipe.layers import window
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class BatchNorm(Layer):
  """y = gamma · (x - mean) / sqrt(variance + epsilon) + beta, per channel.

  `FProp(theta, x)`: [batch, height, width, dim] → the same. Weights [dim]: `gamma`,
  `beta`, and `moving_mean`, `moving_variance`, which aren't trained. Mean and (biased)
  variance are those of x in training; in evaluation, and if the layer is frozen, the
  moving ones. All of them are float32, whatever the dtype of x and y.
  """

  SPLITS_BACKWARD = False  # one op gives all gradients

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `dim` is required."""
    p = super().Params()
    p.Define("dim", 0, "Number of channels.")
    p.Define("decay", 0.9997, "Share of the moving averages that a step keeps.")
    p.Define("epsilon", 1e-3, "Added to the variance.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    dim = check_count(self, params, "dim", 1)
    check_number(self, params, "decay", "[0, 1]")
    check_number(self, params, "epsilon", "(0, 1)")
    zeros, ones = (
      WeightParams((dim,), WeightInit.Constant(value), stays_float32=True)
      for value in (0.0, 1.0)
    )
    self.CreateVariable("gamma", ones)
    self.CreateVariable("beta", zeros)
    self.CreateVariable("moving_mean", dataclasses.replace(zeros, trainable=False))
    self.CreateVariable("moving_variance", dataclasses.replace(ones, trainable=False))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Normalizes x, and hands out its moments in training."""
    (x,) = inputs
    p = self.params
    if self.do_eval or not p.trainable:
      return _normalize(x, theta, p.epsilon, theta.moving_mean, theta.moving_variance).y
    # Empty statistics: the op takes those of x.
    empty = tf.zeros([0])
    result = _normalize(x, theta, p.epsilon, empty, empty)
    # Moments are no part of what is differentiated: the op's gradient covers them.
    variance = tf.stop_gradient(result.batch_variance) * _bias(x.shape)
    self.AddMoments(result.batch_mean, variance, p.decay)
    return result.y

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; TensorFlow's profiler counts the fused op as no operation.

    Mean and variance are kept.
    """
    (x,) = inputs
    window.check_map(params.name, x, params.dim)
    if not params.trainable:
      return cls.Cost(params, x)
    return cls.Cost(params, x, flops=params.dim, activation_bytes=2 * 4 * params.dim)


def _normalize(
  x: tf.Tensor,
  theta: NestedMap,
  epsilon: float,
  mean: tf.Tensor,
  variance: tf.Tensor,
) -> tf.raw_ops.FusedBatchNormV3:
  """Calls the fused op: twice as fast as its parts on CPU, forward and backward."""
  return tf.raw_ops.FusedBatchNormV3(
    x=x,
    scale=theta.gamma,
    offset=theta.beta,
    mean=mean,
    variance=variance,
    epsilon=epsilon,
    is_training=not mean.shape[0],
  )


def _bias(shape: Sequence[int]) -> float:
  """Gives what turns the fused op's unbiased variance over n cells into the biased."""
  num_cells = math.prod(shape[:3])
  return (num_cells - 1) / num_cells
