"""Softmax over a vocabulary, cross-entropy and its metrics: the end of a text model."""

from __future__ import annotations

from typing import Any, cast

from tfpipe.checks import check_count, check_number
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.linear import product
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class SoftmaxLoss(Layer):
  """Logits `x·w + b`, clipped if asked to, and the loss of each position.

  The loss is the cross-entropy with labels smoothed over the vocabulary (Szegedy et
  al., arXiv:1512.00567, section 7). Logits exist for one micro-batch only; no array of
  one-hot labels is made. Clipping bounds logits "to a fixed magnitude" (GPipe,
  arXiv:1811.06965, section 5); beyond it their gradient is 0.
  """

  SIDE_INPUTS = ("labels", "weights")

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; dim and vocab_size must be set."""
    p = super().Params()
    p.Define("dim", 0, "Size of the last dimension of the input.")
    p.Define("vocab_size", 0, "Number of tokens.")
    p.Define(
      "tied_to",
      "",
      "Name of the embedding table [vocab_size, dim] that is the softmax matrix, "
      "e.g. embedding/w; empty for a matrix of its own.",
    )
    p.Define("label_smoothing", 0.0, "Share of the label spread over the vocabulary.")
    p.Define("logits_abs_max", 0.0, "Logits are clipped to ± this; 0 does not clip.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    dim = check_count(self, p, "dim", 1)
    vocab_size = check_count(self, p, "vocab_size", 1)
    check_number(self, p, "label_smoothing", "[0, 1)")
    check_number(self, p, "logits_abs_max", "[0, inf)")
    shape = (vocab_size, dim) if p.tied_to else (dim, vocab_size)
    self.CreateVariable("w", WeightParams(shape, l2=not p.tied_to, tied_to=p.tied_to))
    self.CreateVariable("b", WeightParams((vocab_size,), WeightInit.Constant(0.0)))

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Gives the metrics of a micro-batch.

    Args:
      theta: weights.
      *inputs: x [batch, time, dim]; side with `labels`, int32 [batch, time],
        each below vocab_size, and `weights`, float32 [batch, time], 0 for padding.

    Returns:
      (sum, weight) of `loss` (nats), `log_perplexity` (nats, labels not smoothed) and
      `accuracy`, weighted by position.
    """
    x, side = inputs
    p = self.params
    labels, weights = tf.reshape(side.labels, [-1]), tf.reshape(side.weights, [-1])
    logits = self._logits(theta, x)
    best = tf.argmax(logits, -1, output_type=labels.dtype)
    loss, nats = cross_entropy(logits, labels, best, p.label_smoothing)
    hits = tf.cast(best == labels, tf.float32)
    total = tf.reduce_sum(weights)
    return NestedMap(
      loss=(tf.reduce_sum(loss * weights), total),
      log_perplexity=(tf.reduce_sum(nats * weights), total),
      accuracy=(tf.reduce_sum(hits * weights), total),
    )

  def Predict(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Gives `logits`, float32 [batch, time, vocab_size], of each next token."""
    (x,) = inputs
    logits = tf.cast(self._logits(theta, x), tf.float32)
    return NestedMap(logits=tf.reshape(logits, [*x.shape[:-1], logits.shape[1]]))

  def _logits(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    """Computes [batch · time, vocab_size], of the dtype of x."""
    p = self.params
    x = tf.reshape(x, [-1, p.dim])
    if p.tied_to:
      logits = tf.matmul(x, theta.w, transpose_b=True)
    else:
      logits = product(x, theta.w)
    logits = tf.nn.bias_add(logits, theta.b)
    return clip(logits, p.logits_abs_max) if p.logits_abs_max else logits

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for an ArraySpec [batch, time, dim] and those of side."""
    x, side = inputs
    p = params
    for name in cls.SIDE_INPUTS:
      if side[name].shape != x.shape[:-1]:
        raise ValueError(
          f"{p.name}: {name} are {side[name].shape}, but the input is {x.shape}"
        )
    if x.shape[-1] != p.dim:
      raise ValueError(f"{p.name}: dim={p.dim}, but the input is {x.shape}")
    rows, scalar = x.size // p.dim, ArraySpec(())
    logits = rows * p.vocab_size
    # Bias, five of the softmax, place of the largest; single numbers a row.
    flops = 7 * logits + 10 * rows - 4
    if p.label_smoothing:
      flops += 2 * logits + 4 * rows
    return cls.Cost(
      p,
      NestedMap.fromkeys(("loss", "log_perplexity", "accuracy"), (scalar, scalar)),
      flops=flops,
      matmul_flops=2 * x.size * p.vocab_size,
      # Logits; place of the label.
      activation_bytes=x.itemsize * logits + 8 * rows,
    )


def clip(logits: tf.Tensor, abs_max: float) -> tf.Tensor:
  """Bounds logits of any shape to ±abs_max; the gradient at a bound is 0.

  The gradient keeps the result, which cross-entropy keeps anyway, and not the logits.
  """

  @tf.custom_gradient
  def call(logits: tf.Tensor) -> Any:
    y = tf.raw_ops.ClipByValue(
      t=logits, clip_value_min=-abs_max, clip_value_max=abs_max
    )

    def gradient(dy: tf.Tensor) -> tf.Tensor:
      return tf.where(tf.abs(y) < abs_max, dy, 0.0)

    return y, gradient

  return call(logits)


def cross_entropy(
  logits: tf.Tensor, labels: tf.Tensor, best: tf.Tensor, smoothing: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Computes the cross-entropy with labels smoothed, and not smoothed, in float32.

  The smoothed label is `(1 - smoothing)·one_hot + smoothing/vocab`. The logarithm of
  the sum is taken from the softmax of the largest logit, which cannot underflow: one
  operation goes over the logits instead of four. The gradient keeps nothing but them.

  Args:
    logits: [rows, vocab], kept in their own dtype.
    labels: int32 [rows], each below vocab.
    best: of the same dtype [rows], the place of the largest logit.
    smoothing: in [0, 1).

  Returns:
    Two float32 [rows], in nats.
  """
  logits = tf.cast(logits, tf.float32)
  rows, vocab = cast("tuple[int, int]", tuple(logits.shape))
  number = tf.range(rows, dtype=labels.dtype)
  places = tf.stack([number, labels], axis=1)

  @tf.custom_gradient
  def call(logits: tf.Tensor) -> Any:
    top = tf.stack([number, best], axis=1)
    log_share = tf.math.log(tf.gather_nd(tf.nn.softmax(logits), top))
    # Logits lose each other first: the logarithm would be lost beside one that is huge.
    largest = tf.gather_nd(logits, top)
    nats = (largest - tf.gather_nd(logits, places)) - log_share
    loss = nats
    if smoothing:
      behind = tf.reduce_mean(largest[:, None] - logits, axis=1)
      loss = (1.0 - smoothing) * nats + smoothing * (behind - log_share)

    def gradient(dloss: tf.Tensor, dnats: tf.Tensor) -> tf.Tensor:
      dlogits = tf.nn.softmax(logits) * (dloss + dnats)[:, None]
      if smoothing:
        dlogits -= (smoothing * dloss / vocab)[:, None]
      at_label = (1.0 - smoothing) * dloss + dnats
      return tf.tensor_scatter_nd_sub(dlogits, places, at_label)

    return (loss, nats), gradient

  return call(logits)
