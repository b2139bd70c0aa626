"""Re-materialization of one layer inside a cell (GPipe, section 2.3).

`tf.recompute_grad` would serve, but adds zero to every weight, refuses None and makes
embedding gradients dense. The recomputation here is tied to the gradient by
`x + cast(dy[0] > 3e38)`: no compiler folds it, so none merges the recomputation with
the forward, and it starts only when the gradient is there. x differs from itself only
if dy is already infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfpipe.lazy import tf
from tfpipe.structure import is_differentiable

_HUGE = 3e38


def rematerialize(
  fn: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]],
  theta: Sequence[tf.Tensor],
  inputs: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
  """Calls `fn([*theta, *inputs])`, keeping only its arguments for the backward pass.

  Args:
    fn: a pure function of its tensors; called once now and once per gradient.
    theta: weights and seeds.
    inputs: tensors of any dtype.

  Returns:
    The flat list that fn returns.
  """

  @tf.custom_gradient
  def call(*args: tf.Tensor) -> Any:
    outputs = fn(args)

    def gradient(*dys: tf.Tensor) -> list[Any]:
      kept = args[: len(theta)]
      again = [*kept, *_tie(args[len(theta) :], dys)]
      sources = [i for i, arg in enumerate(again) if is_differentiable(arg)]
      outs = fn(again)
      targets = [i for i, out in enumerate(outs) if is_differentiable(out)]
      found = tf.gradients(
        [outs[i] for i in targets],
        [again[i] for i in sources],
        grad_ys=[dys[i] for i in targets],
      )
      gradients: list[Any] = [None] * len(again)
      for i, value in zip(sources, found, strict=True):
        gradients[i] = value
      return gradients

    return outputs, gradient

  outputs = call(*theta, *inputs)
  return outputs if isinstance(outputs, (list, tuple)) else [outputs]


def _tie(inputs: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  known = [dy for dy in dys if dy is not None and is_differentiable(dy)]
  known = [dy for dy in known if dy.shape.num_elements() != 0]
  if not known:
    return list(inputs)
  # One number, or none where the data decides on the rows.
  first = tf.cast(tf.math.real(tf.reshape(known[0], [-1])[:1]), tf.float32)
  zero = tf.cast(tf.reduce_any(first > _HUGE), tf.float32)
  return [x + tf.cast(zero, x.dtype) if is_differentiable(x) else x for x in inputs]
