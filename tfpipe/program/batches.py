"""Batches on their way to the step: their device, and their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tfpipe.input.base import Input
from tfpipe.lazy import tf
from tfpipe.program.fetch import Fetcher, next_batch
from tfpipe.program.watchdog import Watchdog

Make: TypeAlias = "Callable[[Mapping[str, tf.TensorSpec]], Any]"


def ahead(batches: tf.data.Dataset, device: str) -> tf.data.Dataset:
  """Has the next batch copied to a device ahead of time; CPUs share their memory."""
  if is_cpu(device):
    return batches
  return batches.apply(tf.data.experimental.prefetch_to_device(device, buffer_size=1))


def is_cpu(device: str) -> bool:
  """Says whether a device of this name has its memory on the host."""
  return tf.DeviceSpec.from_string(device).device_type == "CPU"


def first_planned(
  source: Input, what: str, watchdog: Watchdog
) -> Mapping[str, tf.Tensor]:
  """Gives the first batch of the shape that plans are made for, the largest.

  Args:
    source: the input.
    what: waits for it.
    watchdog: limits each wait.

  Raises:
    ValueError: all are smaller.
    StepError: the input has failed.
  """
  specs = source.specs()
  with Fetcher(iter(source.dataset().take(source.steps_per_epoch))) as batches:
    while (batch := next_batch(batches, what, source, watchdog)) is not None:
      if _shapes(batch) == _shapes(specs):
        return batch
  raise ValueError(
    f"{type(source).__name__} gives no batch of {dict(specs)} to check by"
  )


class ByShape:
  """A function of batches of several shapes: for each shape a traced one."""

  def __init__(self, source: Input, make: Make) -> None:
    self._functions = {
      _shapes(specs): make(_tensor_specs(specs)) for specs in source.all_specs()
    }

  def __call__(self, batch: Mapping[str, tf.Tensor]) -> Any:
    """Calls the function of the batch's shape."""
    return self._functions[_shapes(batch)](batch)


def by_shape(source: Input, make: Make) -> Any:
  """Traces a function for each shape of the batches of an input.

  Args:
    source: the input.
    make: specs of a batch → ConcreteFunction.

  Returns:
    the ConcreteFunction, or a `ByShape` if there are several.
  """
  shapes = source.all_specs()
  return make(_tensor_specs(shapes[0])) if len(shapes) == 1 else ByShape(source, make)


def _tensor_specs(specs: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
  return {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}


def _shapes(batch: Mapping[str, Any]) -> tuple:
  return tuple(sorted((name, tuple(value.shape)) for name, value in batch.items()))
