"""A mini-batch as devices have it: of each micro-batch and field one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfpipe.lazy import tf
from tfpipe.structure import static_shape


class MiniBatch:
  """The fields of a mini-batch, and their form on a device.

  Rows of a TPU core's tiles hold 128 numbers: pictures of three channels take 43 times
  their numbers. So only the micro-batch that is in use has the shape of a field.

  Args:
    fields: specs [rows, ...] of the mini-batch of one pipeline.
    num_micro_batches: M, of that mini-batch; divides the rows.

  Attributes:
    specs: [M, numbers] of each field on a device.
  """

  def __init__(
    self, fields: Mapping[str, tf.TensorSpec], num_micro_batches: int
  ) -> None:
    self._shapes = {name: tuple(static_shape(spec)) for name, spec in fields.items()}
    self._number = num_micro_batches
    self.specs = {
      name: tf.TensorSpec(
        [num_micro_batches, math.prod(self._shapes[name]) // num_micro_batches],
        spec.dtype,
      )
      for name, spec in fields.items()
    }

  def flat(self, batch: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Gives fields [..., R·rows, ...] of R pipelines as [..., R, M, numbers]."""
    return {
      name: tf.reshape(field, [*self._steps(name, field), -1, *self.specs[name].shape])
      for name, field in batch.items()
    }

  def part(self, flat: Mapping[str, tf.Tensor], name: str, m: tf.Tensor) -> tf.Tensor:
    """Gives a field of a micro-batch, in its own shape, from what a device has."""
    rows, *rest = self._shapes[name]
    return tf.reshape(tf.gather(flat[name], m), [rows // self._number, *rest])

  def whole(self, name: str, parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Gives a field in its own shape from what a device of each pipeline has."""
    rows, *rest = self._shapes[name]
    flat = tf.stack(parts, axis=-3)
    return tf.reshape(flat, [*flat.shape[:-3], len(parts) * rows, *rest])

  def _steps(self, name: str, field: Any) -> tuple[int, ...]:
    """Gives the axis of the steps of a call, if there is one."""
    return tuple(field.shape[: len(field.shape) - len(self._shapes[name])])
