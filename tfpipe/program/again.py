"""A mini-batch that went wrong, run again layer by layer to find where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tfpipe.lazy import tf
from tfpipe.pipeline.probe import Probe
from tfpipe.program.places import Places
from tfpipe.program.run import Run
from tfpipe.structure import static_shape

Batch: TypeAlias = "Mapping[str, tf.Tensor]"


class Part(NamedTuple):
  """A micro-batch.

  Attributes:
    number: in its mini-batch.
    row: number of its first row there.
    fields: rows of each field.
  """

  number: int
  row: int
  fields: dict[str, tf.Tensor]


class Again:
  """Runs mini-batches again.

  Nothing may have been learned since: the weights must be those that the step had.

  Args:
    run: the run.
    places: of the run.
  """

  def __init__(self, run: Run, places: Places) -> None:
    self._run = run
    self._places = places
    self._probes: dict[tuple, Probe] = {}

  def first_bad(
    self,
    steps: Iterable[tuple[int, Batch]],
    bad: Iterable[int] = (),
    *,
    are_all: bool = True,
  ) -> str:
    """Says which layer is the first to give a number that is not finite.

    Args:
      steps: number and mini-batch of each step that may be to blame, in order.
      bad: micro-batches to look at; none: all.
      are_all: whether no other step may be to blame.
    """
    wanted = set(bad)
    for step, batch in steps:
      for part in self._parts(batch):
        if wanted and part.number not in wanted:
          continue
        found = self._probe(part.fields).find(part.fields, step - 1, part.row)
        if found is not None:
          layer = self._places.layer(found.layer)
          return (
            f"first, in micro-batch {part.number} of step {step}, the {found.what} of "
            f"{layer} is not finite{_input(part.fields)}"
          )
    others = "" if are_all else "a step before the run was continued gave it, or "
    return (
      f"each micro-batch alone is finite in every layer: {others}a sum is too large"
    )

  def failing(self, step: int, batch: Batch) -> tuple[str, tf.errors.OpError] | None:
    """Finds the layer whose operation fails, and its error; None if none does."""
    # On one device, whatever it is, TensorFlow always gives the error itself; of
    # several, one can be told only that another has failed.
    parts = list(self._parts(batch))
    probe = self._run.probe(parts[0].fields, one_device=True)
    for part in parts:
      try:
        probe.find(part.fields, step - 1, part.row)
      except tf.errors.OpError as error:
        place = self._places.of_probe(str(error))
        return (f"{place} of micro-batch {part.number}", error) if place else None
    return None

  def _probe(self, fields: Batch) -> Probe:
    """Gives the probe for micro-batches of this shape; traced once."""
    shape = tuple(sorted((name, tuple(value.shape)) for name, value in fields.items()))
    if shape not in self._probes:
      self._probes[shape] = self._run.probe(fields)
    return self._probes[shape]

  def _parts(self, batch: Batch) -> Iterator[Part]:
    count = self._run.params.pipeline.num_micro_batches
    whole = dict(batch)
    rows = static_shape(next(iter(whole.values())))[0] // count
    for m in range(count):
      row = m * rows
      fields = {name: value[row : row + rows] for name, value in whole.items()}
      yield Part(m, row, fields)


def _input(fields: Batch) -> str:
  bad = [name for name, value in fields.items() if not _is_finite(value)]
  return f"; nor is the input's {', '.join(bad)}" if bad else ""


def _is_finite(value: Any) -> bool:
  array = np.asarray(value)
  return array.dtype.kind != "f" or bool(np.isfinite(array).all())
