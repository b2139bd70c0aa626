"""Tiny experiments with everything whose state a checkpoint must hold."""

from __future__ import annotations

from typing import Any

from models.transformer.language_model import TransformerLm
from tfpipe import experiment, registry
from tfpipe.checks import check_count
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.input.base import Reader, Rows
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.layers import rng
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import Adam, Learner, Momentum
from tfpipe.params import InstantiableParams, Params
from tfpipe.task import Task

EPSILON = 1e-3
DECAY = 0.8


class Block(Layer):
  """dropout(tanh(norm(x·w + b))): [batch, ...] → [batch, out_dim]."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("in_dim", 0, "Values of an example.")
    p.Define("out_dim", 0, "Units.")
    p.Define("keep_prob", 1.0, "Share of units kept in training.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    in_dim, out_dim = params.in_dim, params.out_dim
    self.CreateVariable("w", WeightParams((in_dim, out_dim), l2=True))
    self.CreateVariable("b", WeightParams((out_dim,), WeightInit.Constant(0.1)))
    for name, value in (("moving_mean", 0.0), ("moving_variance", 1.0)):
      init = WeightInit.Constant(value)
      self.CreateVariable(name, WeightParams((out_dim,), init, trainable=False))
    if params.keep_prob < 1:
      self.CreateSeed()

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    (x,) = inputs
    p = self.params
    y = tf.matmul(tf.reshape(x, [-1, p.in_dim]), theta.w) + theta.b
    if self.do_eval:
      mean, variance = theta.moving_mean, theta.moving_variance
    else:
      mean, variance = tf.nn.moments(y, [0])
      self.AddMoments(mean, variance, DECAY)
    y = tf.tanh((y - mean) * tf.math.rsqrt(variance + EPSILON))
    if p.keep_prob == 1 or self.do_eval:
      return y
    kept = rng.uniform(theta.seed, y.shape) < p.keep_prob
    return tf.where(kept, y / p.keep_prob, tf.zeros_like(y))

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    (x,) = inputs
    if x.size != x.shape[0] * params.in_dim:
      raise ValueError(f"{params.name}.in_dim={params.in_dim} does not fit {x.shape}")
    out = ArraySpec((x.shape[0], params.out_dim))
    return cls.Cost(params, out, matmul_flops=2 * x.size * params.out_dim)


class Classifier(Task):
  """Blocks `block_0` ..., the last with a unit for each class, and `loss`."""

  INPUT_FIELDS = ("image",)

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("num_blocks", 4, "Blocks.")
    p.Define("dim", 6, "Units of all blocks but the last.")
    p.Define("num_classes", 7, "Units of the last block.")
    p.Define("image_values", 9, "Values of an image.")
    p.Define("keep_prob", 1.0, "Share of units kept in training.")
    p.Define("loss", ClassifierLoss.Params(), "Params of the last layer.")
    return p

  def Layers(self) -> list[InstantiableParams]:
    p = self.params
    dims = [p.image_values, *[p.dim] * (p.num_blocks - 1), p.num_classes]
    blocks = [
      Block.Params().Set(
        name=f"block_{i}",
        in_dim=dims[i],
        out_dim=dims[i + 1],
        keep_prob=p.keep_prob if i + 1 < p.num_blocks else 1.0,
      )
      for i in range(p.num_blocks)
    ]
    return [*blocks, p.loss.Copy().Set(name="loss")]


class BadLossLayer(ClassifierLoss):
  """A loss that is NaN at step 3, with the gradients it should have."""

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    self.CreateSeed()

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    metrics = super().FProp(theta, *inputs)
    total, weight = metrics.loss
    number = theta.seed[1] + 1
    metrics.loss = (total + tf.where(number == 3, float("nan"), 0.0), weight)
    return metrics


class FaultyLoss(ClassifierLoss):
  """A loss that cannot be evaluated."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("fault", "raise", "'raise', 'build' or 'spin'.")
    return p

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    x, side = inputs
    if not self.do_eval:
      return super().FProp(theta, x, side)
    if self.params.fault == "build":
      raise ZeroDivisionError("a mistake in FProp")
    zero = tf.cast(0 * x[0, 0], tf.int32)
    if self.params.fault == "raise":
      found = tf.gather(x, zero + x.shape[0])
    else:
      found = tf.while_loop(lambda i: i == i + zero, lambda i: (i,), (zero,))[0]
    return super().FProp(theta, x + 0.0 * tf.cast(found, tf.float32), side)


class PoisonedImageInput(SyntheticImageInput):
  """Images, some of them nothing but one bad value."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    p = super().Params()
    p.Define("first_bad", 0, "Number of the first bad example since step 0.")
    p.Define("num_bad", 1, "How many are bad.")
    p.Define("bad_value", float("nan"), "What they are made of.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_count(self, params, "first_bad", 0)

  def _reader(self) -> Reader:
    read, p = super()._reader(), self.params

    def poisoned(rows: Rows) -> dict[str, tf.Tensor]:
      batch = read(rows)
      after = rows.counters - p.first_bad
      bad = (after >= 0) & (after < p.num_bad)
      image = batch["image"]
      batch["image"] = tf.where(bad[:, None, None, None], p.bad_value, image)
      return batch

    return poisoned


@registry.Register
class Image(experiment.Experiment):
  """Batch norm, dropout, momentum, averages, L2 and clipping; 29 + 13 examples."""

  def Train(self) -> Params:
    return SyntheticImageInput.Params().Set(
      batch_size=8, image_size=3, num_classes=7, num_examples=29
    )

  def Test(self) -> Params:
    return SyntheticImageInput.EvalParams().Set(
      batch_size=8, image_size=3, num_classes=7, num_examples=13
    )

  def Task(self) -> Params:
    return Classifier.Params().Set(
      keep_prob=0.8,
      learner=Learner.Params().Set(
        optimizer=Momentum.Params(),
        learning_rate=0.1,
        weight_decay_l2=0.01,
        clip_gradient_norm_to_value=1.0,
        ema_decay=0.6,
      ),
    )

  def Model(self) -> Params:
    p = super().Model()
    p.pipeline.Set(num_partitions=2, num_micro_batches=2)
    p.train.Set(max_steps=6, log_interval_steps=1, save_interval_steps=2)
    return p


@registry.Register
class NoTest(Image):
  """No evaluation input."""

  Test = experiment.Experiment.Test


@registry.Register
class Poisoned(Image):
  """Example 19 since step 0 is NaN: mini-batch 3 of 8 rows, its micro-batch 0."""

  def Train(self) -> Params:
    return PoisonedImageInput.Params().Set(
      batch_size=8,
      image_size=3,
      num_classes=7,
      num_examples=48,
      shuffle=False,
      first_bad=19,
    )


@registry.Register
class BadLoss(Image):
  """The loss of step 3 is NaN, and nothing else."""

  def Task(self) -> Params:
    return super().Task().Set(loss=BadLossLayer.Params())


@registry.Register
class FaultyEvaluation(Image):
  """Its training does well."""

  def Task(self) -> Params:
    return super().Task().Set(loss=FaultyLoss.Params())


@registry.Register
class Text(experiment.Experiment):
  """A Transformer of one block with tied embeddings."""

  def Train(self) -> Params:
    return SyntheticTextInput.Params().Set(
      batch_size=4, seq_len=5, vocab_size=11, num_examples=21
    )

  def Test(self) -> Params:
    return SyntheticTextInput.EvalParams().Set(
      batch_size=4, seq_len=5, vocab_size=11, num_examples=9
    )

  def Task(self) -> Params:
    return TransformerLm.Params().Set(
      vocab_size=11,
      sequence_length=5,
      num_layers=1,
      model_dim=8,
      ff_dim=16,
      num_heads=2,
      dropout_keep_prob=0.9,
      tie_embeddings=True,
      final_norm=True,
      learner=Learner.Params().Set(optimizer=Adam.Params(), learning_rate=0.01),
    )

  def Model(self) -> Params:
    p = super().Model()
    p.pipeline.Set(num_partitions=2, num_micro_batches=2)
    p.train.Set(max_steps=4, log_interval_steps=1, save_interval_steps=2)
    return p


@registry.Register
class NoTask(experiment.Experiment):
  """An experiment that is not finished."""

  def Train(self) -> Params:
    return SyntheticImageInput.Params()
