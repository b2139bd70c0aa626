"""Calls of the devices that make several steps: what each step of them had and gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tfpipe.lazy import tf


class _Part(Mapping[str, Any]):
  """What one step of a call has of a dict; taken from it when it is asked for."""

  def __init__(self, values: Mapping[str, Any], step: int) -> None:
    self._values = values
    self._step = step

  def __getitem__(self, name: str) -> Any:
    return tf.nest.map_structure(lambda t: t[self._step], self._values[name])

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def __len__(self) -> int:
    return len(self._values)


def parts(values: Mapping[str, Any], number: int) -> list[Mapping[str, Any]]:
  """Takes a dict of nests of tensors apart along the axis of its steps.

  Args:
    values: batches of a call, or what it gives.
    number: of its steps; with 1 there is no such axis.
  """
  if number == 1:
    return [values]
  return [_Part(values, step) for step in range(number)]
