"""How long functions take within a graph, without the cost of a call from Python."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from tfpipe.lazy import tf

Call: TypeAlias = "Callable[[Sequence[tf.Tensor]], Iterable[tf.Tensor]]"
Clock: TypeAlias = Callable[[], float]

MIN_SECS = 0.1
"""A chain is made long enough to take this time."""
REPEATS = 7
"""Rounds over all chains; the median of a chain counts."""
_MAX_CALLS = 10**6


class Chain:
  """A function that calls another any number of times, one call after the other.

  Graphs are pure, and TensorFlow drops what nobody reads: a call whose outputs only
  have to be there is not run at all, and equal calls are one. So the calls are the
  iterations of a loop, which run one at a time, and each ends with an operation with
  an effect that takes all outputs.

  Args:
    call: adds the calls to a graph: tensors → tensors.
    values: its arguments.
    device: where it runs.

  Attributes:
    num_tensors: how many enter and leave a call.
  """

  def __init__(self, call: Call, values: Sequence[tf.Tensor], *, device: str) -> None:
    self._call = call  # may hold variables that only it keeps alive
    self._values = list(values)
    self._device = device
    self._num_outputs = 0
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    self._function = tf.function(
      lambda count, *args: self._loop(count, args), autograph=False
    ).get_concrete_function(tf.TensorSpec([], tf.int32), *specs)
    # Besides its counter and bounds, the loop takes what the call reads.
    loops = [op for op in self._function.graph.get_operations() if op.type == "While"]
    self.num_tensors = len(loops[0].inputs) + self._num_outputs

  def __call__(self, count: int) -> None:
    """Runs the calls and waits for their end."""
    self._function(tf.constant(count), *self._values).numpy()

  def _loop(self, count: tf.Tensor, args: Sequence[tf.Tensor]) -> tf.Tensor:
    def step(index: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      outputs = list(self._call(args))
      self._num_outputs = len(outputs)
      taken = tf.raw_ops.Stage(values=outputs, shared_name="profiled")
      with tf.control_dependencies([taken]):
        types = [tensor.dtype for tensor in outputs]
        tf.raw_ops.StageClear(dtypes=types, shared_name="profiled")
      return index + 1, end

    with tf.device(self._device):
      # A copy of `end` back from a device waits for all that it was given to do.
      _, end = tf.while_loop(
        lambda index, end: index < count,
        step,
        (tf.constant(0), tf.zeros([])),
        parallel_iterations=1,
      )
    return end


def measure(chains: Sequence[Callable[[int], None]], clock: Clock) -> list[float]:
  """Gives the seconds that each further call of a chain takes.

  All chains are measured in turn, several times, so that a slow minute of the machine
  meets them all; the median of each counts.
  """
  counts = [_count(chain, clock) for chain in chains]
  rounds = [
    [
      (_elapsed(chain, count, clock) - _elapsed(chain, 0, clock)) / count
      for chain, count in zip(chains, counts, strict=True)
    ]
    for _ in range(REPEATS)
  ]
  return [statistics.median(found) for found in zip(*rounds, strict=True)]


def _count(chain: Callable[[int], None], clock: Clock) -> int:
  """Finds how many calls take `MIN_SECS`, and warms the chain up."""
  chain(1)
  count = 1
  while count < _MAX_CALLS:
    secs = _elapsed(chain, count, clock)
    if secs >= MIN_SECS:
      break
    count = min(_MAX_CALLS, math.ceil(count * min(max(MIN_SECS / secs, 1.5), 10)))
  return count


def _elapsed(chain: Callable[[int], None], count: int, clock: Clock) -> float:
  start = clock()
  chain(count)
  return clock() - start


def call_secs(
  chains: Sequence[Chain], device: str, clock: Clock = time.perf_counter
) -> list[float]:
  """Measures what a call of each chain takes, without what the chain itself takes.

  That is measured by chains of calls that do nothing, with few tensors and with many.
  """
  few, many = (_empty(count, device) for count in (1, 200))
  base, more, *found = measure([few, many, *chains], clock)
  per_tensor = (more - base) / (many.num_tensors - few.num_tensors)
  return [
    max(0.0, secs - base - per_tensor * (chain.num_tensors - few.num_tensors))
    for secs, chain in zip(found, chains, strict=True)
  ]


def _empty(count: int, device: str) -> Chain:
  """Makes a chain of calls that hand on so many scalars, and do nothing."""
  with tf.device(device):
    values = [tf.ones([]) for _ in range(count)]
  return Chain(lambda values: values, values, device=device)
