"""Brings mini-batches to all devices of a strategy, each pipeline its own part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfpipe.lazy import tf
from tfpipe.pipeline.clock import HOST
from tfpipe.spmd.mini_batch import MiniBatch


class Feeder:
  """Brings mini-batches to devices, number n of which is in pipeline n div K.

  Args:
    strategy: has one replica on each.
    mini_batch: that of one pipeline.
    num_stages: K.
  """

  def __init__(
    self, strategy: tf.distribute.Strategy, mini_batch: MiniBatch, num_stages: int
  ) -> None:
    self._strategy = strategy
    self._mini_batch = mini_batch
    self._num_stages = num_stages

  def all(self, batches: tf.data.Dataset) -> Iterator[Fed]:
    """Brings mini-batches, or those of calls, ahead of time.

    Raises:
      ValueError: a dimension of a field is not known.
    """
    fields: Any = batches.element_spec
    for name, spec in fields.items():
      if not spec.shape.is_fully_defined():
        raise ValueError(
          f"input: {name} has shape {spec.shape}, of which all must be known where all "
          "devices run one program"
        )

    # A worker gives its devices one element after the other.
    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
      count = self._strategy.num_replicas_in_sync // context.num_input_pipelines
      first = count * context.input_pipeline_id
      numbers = tf.data.Dataset.range(first, first + count)
      return batches.map(self._mini_batch.flat).flat_map(
        lambda flat: numbers.map(lambda number: self._of(number, flat))
      )

    values = self._strategy.distribute_datasets_from_function(own)
    return (Fed(self, everywhere) for everywhere in iter(values))

  def one(self, batch: Mapping[str, Any]) -> Fed:
    """Brings a mini-batch, or those of a call: fields [rows, ...] of all pipelines."""
    flat = self._mini_batch.flat(batch)
    return Fed(
      self,
      self._strategy.experimental_distribute_values_from_function(
        lambda context: self._of(context.replica_id_in_sync_group, flat)
      ),
    )

  def back(self, name: str, everywhere: Any) -> tf.Tensor:
    """Gives a field in its own shape from what each device has, on the host."""
    parts = self._strategy.experimental_local_results(everywhere)
    with tf.device(HOST):
      return self._mini_batch.whole(name, parts[:: self._num_stages])

  def _of(self, number: Any, flat: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Gives what a device has of a batch."""
    pipeline = number // self._num_stages
    return {name: field[..., pipeline, :, :] for name, field in flat.items()}


class Fed(Mapping[str, Any]):
  """A mini-batch, or those of a call, on all devices.

  A field that is asked for comes back to the host: that is for the first batch, and for
  one in which something is wrong.

  Args:
    feeder: what has brought it.
    everywhere: fields as each device has them.
  """

  def __init__(self, feeder: Feeder, everywhere: Any) -> None:
    self._feeder = feeder
    self.everywhere = everywhere

  def __getitem__(self, name: str) -> tf.Tensor:
    return self._feeder.back(name, self.everywhere[name])

  def __iter__(self) -> Iterator[str]:
    return iter(self.everywhere)

  def __len__(self) -> int:
    return len(self.everywhere)
