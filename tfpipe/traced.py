"""Traced functions, for any device, and calls that stay calls.

TensorFlow neither inlines nor rewrites them. So a function is made ready once, however
often it is called; what a layer computes, to the last bit, does not depend on what is
around it; control dependencies of a call hold.

Grappler has nothing to give: what depends on constants is folded when a function is
cut, and what it would reorder, fuse or fold beyond that changes the last bits as far as
nobody else needs what is between: a forward that keeps it for the gradient would give
other numbers than one that does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
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


def call(
  function: Function,
  args: Sequence[tf.Tensor],
  *,
  serial: bool = False,
  changes: bool = False,
) -> list[tf.Tensor]:
  """Adds a call to the graph under construction.

  Args:
    function: to be called.
    args: its arguments.
    serial: whether its ops run one after the other, on one thread. That thread would be
      blocked by a call within: with as many such calls as threads, forever.
    changes: whether it changes variables, and so must run. Calls that do and have no
      variable among their arguments are put in one order, over all devices.
  """
  if not function.outputs and not changes:
    return []
  graph = tf.compat.v1.get_default_graph()
  function.add_to_graph(graph)
  op = tf.raw_ops.StatefulPartitionedCall if changes else tf.raw_ops.PartitionedCall
  with graph._attr_scope(_no_inference()):
    found = op(
      args=[*args, *function.captured_inputs],
      Tout=[tensor.dtype for tensor in function.outputs],
      f=function,
      config_proto=_no_rewriting(),
      executor_type="SINGLE_THREADED_EXECUTOR" if serial else "",
    )
  return _with_shapes(found, function)


def call_one_of(
  condition: tf.Tensor,
  function: Function,
  otherwise: Function,
  args: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Adds a call of one of two functions that change variables or not.

  Args:
    condition: bool scalar; True for `function`.
    function: one of them.
    otherwise: the other, with equal arguments and outputs.
    args: of both.
  """
  for each in (function, otherwise):
    each.add_to_graph(tf.compat.v1.get_default_graph())
  found = tf.raw_ops.If(
    cond=condition,
    input=args,
    Tout=[tensor.dtype for tensor in function.outputs],
    then_branch=function,
    else_branch=otherwise,
  )
  return _with_shapes(found, function)


@functools.cache
def _no_rewriting() -> bytes:
  """Gives the attribute of a call whose function Grappler leaves as it is."""
  config = tf.compat.v1.ConfigProto()
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config.SerializeToString()


@functools.cache
def _no_inference() -> dict[str, Any]:
  """Gives the attribute of a call whose function is not looked into for shapes.

  TensorFlow would do so at each call; they are known since the function was traced.
  """
  return {"_disable_call_shape_inference": tf.compat.v1.AttrValue(b=True)}


def _with_shapes(found: Sequence[tf.Tensor], function: Function) -> list[tf.Tensor]:
  for tensor, traced in zip(found, function.outputs, strict=True):
    tensor.set_shape(traced.shape)
  return list(found)


def specs(tensors: Iterable[Any]) -> list[tf.TensorSpec]:
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
