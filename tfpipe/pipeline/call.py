"""Functions cut out of layers, and how a pipeline runs them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from tfpipe.lazy import tf
from tfpipe.packed import pack, unpack, variants
from tfpipe.pipeline.clock import HOST
from tfpipe.pipeline.subgraph import GraphCutter
from tfpipe.traced import Function, call, specs, trace


@dataclasses.dataclass(frozen=True)
class Execution:
  """How the functions of a pipeline are run.

  Attributes:
    serial: whether the ops of a call run one after the other.
    xla: whether the functions of cells are compiled with XLA.
    whole: whether what calls the functions is compiled together with them. No value
      then travels packed, which no compiler can read, and order is a matter of data.
  """

  serial: bool = False
  xla: bool = False
  whole: bool = False


PLAIN = Execution()


def reference() -> tf.Operation:
  """Adds an op whose followers TensorFlow does not look into when it runs them first.

  It looks for reference variables in the body of every call, and of the calls within,
  again for each call; but not in what comes after such a variable. With 128 micro-
  batches that took 2 of the 3 seconds in which a step is made ready.
  """
  with tf.device(HOST):
    return tf.raw_ops.VariableV2(shape=[], dtype=tf.float32).op


class Call:
  """A function cut out of the traced graph of a layer.

  Args:
    cutter: of the graph.
    known: tensors that are known when it is called.
    wanted: tensors that it gives.
    summed: tensors that it gives behind them, each added to a sum if there is one.
      They and their sums travel packed, but in code that is compiled.
    execution: how it is run.

  Attributes:
    reads: places of the known tensors that it reads, and so is called with.
    num_summed: as how many tensors it gives the summed ones.
  """

  def __init__(
    self,
    cutter: GraphCutter,
    known: Sequence[tf.Tensor],
    wanted: Sequence[tf.Tensor],
    summed: Sequence[tf.Tensor] = (),
    *,
    execution: Execution,
  ) -> None:
    read = cutter.reads([*wanted, *summed], known)
    self.reads = [place for place, t in enumerate(known) if t.name in read]
    self._execution = execution
    self._num_wanted = len(wanted)
    self._given = [known[place] for place in self.reads]
    self._summed = list(summed)
    self._packs = bool(summed) and not (execution.xla or execution.whole)
    self.num_summed = 1 if self._packs else len(summed)
    self._cut, self._calls_others = cutter.cut(self._given, [*wanted, *summed])

  def __call__(
    self, values: Sequence[tf.Tensor], sums: Sequence[tf.Tensor] | None = None
  ) -> list[tf.Tensor]:
    """Adds a call.

    Args:
      values: what it reads.
      sums: what the summed tensors are added to. None: they begin new sums.
    """
    serial = self._execution.serial and not self._calls_others
    if sums is None:
      return call(self._first, values, serial=serial)
    return call(self._adding, [*values, *sums], serial=serial)

  @functools.cached_property
  def _first(self) -> Function:
    return trace(lambda *args: self._packed(self._cut(args)), specs(self._given))

  @functools.cached_property
  def _adding(self) -> Function:
    count, own = len(self._given), specs(self._summed)

    def body(*args: tf.Tensor) -> list[tf.Tensor]:
      found = self._cut(args[:count])
      sums = unpack(args[count], own) if self._packs else args[count:]
      # The sum is written over the gradient, which is in the cache.
      pairs = zip(sums, found[self._num_wanted :], strict=True)
      added = [total + value for total, value in pairs]
      return self._packed([*found[: self._num_wanted], *added])

    sums = variants(1) if self._packs else own
    return trace(body, [*specs(self._given), *sums])

  def _packed(self, found: list[tf.Tensor]) -> list[tf.Tensor]:
    """Packs the last tensors, if they travel so."""
    if not self._packs:
      return found
    return [*found[: self._num_wanted], pack(found[self._num_wanted :])]
