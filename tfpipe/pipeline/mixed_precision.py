"""Layers that compute in half as many bits as their weights have.

Weights, what belongs to an optimizer, sums of gradients, moments, losses and metrics
are float32. A layer gets its weights and inputs in the compute dtype, and hands on the
same. Casting is part of the function of a layer, so the gradients of weights leave it
in float32 (Micikevicius et al., arXiv:1710.03740, section 3.1).

float16 has a smallest number that gradients fall below: there the losses of all layers
are differentiated times a scale (section 3.2), which the learner divides out of the
sums. Layers are handed the scale as a weight that is the learner's variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from tfpipe.layers.base import Layer, WeightParams
from tfpipe.lazy import tf

LOSS_SCALE = "loss_scale"
"""Name of the weight by which a layer gets the scale."""


def prepare(layers: Sequence[Layer], dtype: str, scale_name: str) -> None:
  """Makes layers compute in a dtype, before any of them is traced.

  Args:
    layers: of a network.
    dtype: one of `model.COMPUTE_DTYPES`.
    scale_name: global name of the variable that losses are scaled by; empty if they are
      not.
  """
  for layer in layers:
    layer.compute_dtype = dtype
    if scale_name:
      scale = WeightParams((), trainable=False, tied_to=scale_name, stays_float32=True)
      layer.CreateVariable(LOSS_SCALE, scale)


def theta(layer: Layer, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Gives weights by path as FProp gets them."""
  declared = layer.weights()
  return {
    path: value if declared[path].stays_float32 else tf.cast(value, layer.compute_dtype)
    for path, value in values.items()
  }


def border(layer: Layer, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Casts what enters or leaves a layer, as `cost.in_dtype` says of its specs."""
  return [
    tf.cast(tensor, layer.compute_dtype)
    if tensor.dtype == tf.float32 and tensor.shape.rank != 0
    else tensor
    for tensor in tensors
  ]


def is_cast_again(op: tf.Operation, given: set[str]) -> bool:
  """Says whether a cast is done again rather than kept: of less, or of what is there.

  Args:
    op: of the traced graph of a layer.
    given: names of the ops that give what a function is called with.
  """
  if op.type != "Cast" or not op.outputs[0].dtype.is_floating:
    return False
  (source,) = op.inputs
  if not source.dtype.is_floating:
    return False
  return source.op.name in given or source.dtype.size < op.outputs[0].dtype.size


@contextlib.contextmanager
def naming(layer: Layer) -> Iterator[None]:
  """Names the layer whose tracing fails, and the dtype if it is not float32."""
  try:
    yield
  except Exception as error:
    note = f"in layer {layer.name!r}"
    if layer.compute_dtype == "float32":
      error.add_note(note)
      raise
    reason = str(error).removesuffix(".")
    refusal = ValueError(
      f"pipeline.compute_dtype={layer.compute_dtype!r}: layer {layer.name!r} "
      f"({type(layer).__name__}) cannot be traced in it: {reason}. FProp gets its "
      "weights and inputs in that dtype; tf.cast(x, tf.float32) what must be float32, "
      "as side inputs, losses and moments are"
    )
    refusal.add_note(note)
    raise refusal from error
