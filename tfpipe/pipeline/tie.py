"""Ties by data: what is tied is computed after something else, in any compiler.

A compiler ignores control dependencies. What is tied is what it was, but a compiler
cannot know: to each number is added whether another one is beyond all that is of use.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.lazy import tf
from tfpipe.structure import is_differentiable

_LARGE = 3e38
"""Below the largest numbers of float32 and bfloat16; gradients there are lost."""
_NEVER = 2**62
"""More actions than there are."""


def tied(tensors: Sequence[tf.Tensor], dys: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Gives the inputs of a recomputation, which no compiler can do before.

  Else it would find that the forward has computed the same and keep that instead.

  Args:
    tensors: the inputs.
    dys: gradients that have arrived.
  """
  flag = _is_lost(dys)
  if flag is None:
    return list(tensors)
  return [_plus(tensor, flag) for tensor in tensors]


def after(token: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
  """Gives a tensor that is there once an int64 scalar is."""
  return _plus(tensor, token > _NEVER)


def moved(token: tf.Tensor, found: Sequence[tf.Tensor]) -> tf.Tensor:
  """Gives a token that is there once what was found is: the first number of it."""
  flag = _is_lost(found)
  return tf.identity(token) if flag is None else _plus(token, flag)


def _is_lost(tensors: Sequence[tf.Tensor]) -> tf.Tensor | None:
  floats = [tensor for tensor in tensors if is_differentiable(tensor)]
  if not floats:
    return None
  return tf.cast(tf.reshape(floats[0], [-1])[0], tf.float32) > _LARGE


def _plus(tensor: tf.Tensor, flag: tf.Tensor) -> tf.Tensor:
  if tensor.dtype == tf.bool:
    return tensor | flag
  return tensor + tf.cast(flag, tensor.dtype)
