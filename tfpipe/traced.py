"""Traced functions that TensorFlow does not inline, for any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tfpipe.lazy import tf

Function: TypeAlias = Any
"""A ConcreteFunction, of which TensorFlow's own type tells little."""
Body: TypeAlias = "Callable[..., Sequence[tf.Tensor]]"


def trace(body: Body, args: Sequence[tf.TensorSpec], *, xla: bool = False) -> Function:
  """Traces a function of a flat list of tensors, compiled with XLA or not."""
  function = tf.function(
    body,
    autograph=False,
    jit_compile=xla or None,
    experimental_attributes={"_noinline": True},
  )
  # It may be called on any device, not only on that in scope.
  with tf.device(None):
    return function.get_concrete_function(*args)


def specs(tensors: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
  """Gives shapes and dtypes."""
  return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def handle_specs(count: int) -> list[tf.TensorSpec]:
  """Gives what so many variables are handed to a function by."""
  return [tf.TensorSpec([], tf.resource)] * count


def read(handle: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
  """Reads a float32 variable within a function that several variables share."""
  value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
  value.set_shape(shape)
  return value
