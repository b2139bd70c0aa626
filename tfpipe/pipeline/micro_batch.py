"""Divides a mini-batch into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping

from tfpipe.lazy import tf


def micro_batch_size(batch_size: int, num_micro_batches: int) -> int:
  """Gives the examples per micro-batch.

  Raises:
    ValueError: the number of micro-batches is below 1 or does not divide the batch.
  """
  if num_micro_batches < 1:
    raise ValueError(f"num_micro_batches={num_micro_batches}: must be at least 1")
  if batch_size % num_micro_batches:
    near = max(m for m in range(1, num_micro_batches) if batch_size % m == 0)
    raise ValueError(
      f"num_micro_batches={num_micro_batches} does not divide batch_size={batch_size};"
      f" {near} does"
    )
  return batch_size // num_micro_batches


def split(
  batch: Mapping[str, tf.Tensor], num_micro_batches: int
) -> list[dict[str, tf.Tensor]]:
  """Cuts every field along its first dimension into equal, consecutive parts."""
  parts = {name: tf.split(tensor, num_micro_batches) for name, tensor in batch.items()}
  return [{name: parts[name][m] for name in parts} for m in range(num_micro_batches)]
