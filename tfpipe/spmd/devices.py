"""Runs a program on the devices of a TensorFlow strategy, each with its own state.

The strategy is TPUStrategy on Cloud TPU cores, and MirroredStrategy on logical CPUs:
variables, inputs and calls are one code, and only the exchanges differ. The program is
traced once, and called on each device with the device's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tfpipe.lazy import tf
from tfpipe.spmd.collectives import Collectives
from tfpipe.spmd.feed import Fed
from tfpipe.spmd.program import Program
from tfpipe.structure import static_shape
from tfpipe.traced import Function, call, specs, trace

Arrays: TypeAlias = "Mapping[str, np.ndarray]"


class Devices:
  """The devices of a program.

  Args:
    program: what they run.
    strategy: has one replica on each.
    exchanges: given the number of a replica, how it exchanges with others.
    steps: mini-batches of a call, which goes through them in a loop of its own.
    halts: whether nothing is done in a call after a step in which a loss, a moment or a
      gradient is not finite: the weights are then those which that step had.

  Raises:
    ValueError: the strategy has another number of replicas.
  """

  def __init__(
    self,
    program: Program,
    strategy: tf.distribute.Strategy,
    exchanges: Callable[[tf.Tensor], Collectives],
    steps: int = 1,
    *,
    halts: bool = False,
  ) -> None:
    found = strategy.num_replicas_in_sync
    if found != program.num_replicas:
      raise ValueError(
        f"{found} devices are given, the program is for {program.num_replicas}"
      )
    self._program = program
    self._strategy = strategy
    self._exchanges = exchanges
    self._steps = steps
    self._halts = halts
    self._names = sorted(program.specs())
    self._outputs: Any = None
    self._function = self._traced()
    with strategy.scope():
      self._variables = {
        name: tf.Variable(
          tf.zeros(spec.shape, spec.dtype),
          trainable=False,
          name=name,
          synchronization=tf.VariableSynchronization.ON_READ,
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        for name, spec in program.specs().items()
      }
    self._step = tf.function(self.build, autograph=False)

  def load(self, entries: Arrays) -> None:
    """Takes over a state, given by the names of checkpoint entries."""
    for name, variable in self._variables.items():
      parts = self._program.pack(name, entries)
      for number, own in enumerate(self._local(variable)):
        own.assign(parts[number % len(parts)])

  def entries(self) -> dict[str, np.ndarray]:
    """Gives the state by the names of checkpoint entries.

    Raises:
      ValueError: copies on several devices are not equal.
    """
    found: dict[str, np.ndarray] = {}
    stages = self._program.network.sizes.stages
    for name, variable in self._variables.items():
      parts = [own.numpy() for own in self._local(variable)]
      for number, part in enumerate(parts):
        if not np.array_equal(part, parts[number % stages], equal_nan=True):
          raise ValueError(f"{name} of device {number} are not those of its stage")
      found |= self._program.unpack(name, parts[:stages])
    return found

  def step(self, batch: Fed) -> dict:
    """Trains on the mini-batches of a call.

    Args:
      batch: what `Feeder` has brought.

    Returns:
      what `Program.step` gives but for the state, of the first device; with several
      steps each tensor has a first axis for them.
    """
    return self.everywhere(batch)[0]

  def everywhere(self, batch: Fed) -> list[dict]:
    """Does what `step` does; gives what it gives on each device."""
    found = map(self._local, self._step(batch.everywhere))
    return [
      tf.nest.pack_sequence_as(self._outputs, own) for own in zip(*found, strict=True)
    ]

  def build(self, batch: Any) -> list[Any]:
    """Adds a call to the graph under construction; gives what all devices give, flat.

    Args:
      batch: as each device has it.
    """
    return self._strategy.run(self._replica, (batch,))

  def _local(self, value: Any) -> Any:
    return self._strategy.experimental_local_results(value)

  def _replica(self, batch: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Runs the program on one device, from its variables to them."""
    context: Any = tf.distribute.get_replica_context()
    number = tf.cast(context.replica_id_in_sync_group, tf.int32)
    state = [self._variables[name].read_value() for name in self._names]
    fields = [batch[name] for name in sorted(batch)]
    found = call(self._function, [number, *state, *fields])
    for name, value in zip(self._names, found, strict=False):
      self._variables[name].assign(value)
    return found[len(self._names) :]

  def _traced(self) -> Function:
    """Traces the program: number, state, batch → new state, and what else it gives."""
    state, batch = self._program.specs(), self._program.network.batch.specs
    own = [state[name] for name in self._names]
    fields = [batch[name] for name in sorted(batch)]
    scalar = tf.TensorSpec([], tf.int32)

    def body(number: tf.Tensor, *flat: tf.Tensor) -> list[tf.Tensor]:
      given = dict(zip(self._names, flat, strict=False))
      values = dict(zip(sorted(batch), flat[len(own) :], strict=True))
      found = self._program.step(self._exchanges(number), number, given, values)
      new = found.pop("state")
      self._outputs = tf.nest.map_structure(lambda _: None, found)
      return [*(new[name] for name in self._names), *tf.nest.flatten(found)]

    function = trace(body, [scalar, *own, *fields])
    if self._steps == 1:
      return function
    several = [
      tf.TensorSpec([self._steps, *static_shape(spec)], spec.dtype) for spec in fields
    ]
    return trace(self._loop(function), [scalar, *own, *several])

  def _loop(self, function: Function) -> Callable:
    """Gives the body of a function that calls another one for each of several steps."""
    count, steps = len(self._names), self._steps
    outputs = specs(function.outputs[count:])
    places = tf.nest.pack_sequence_as(self._outputs, range(len(outputs)))

    def body(number: tf.Tensor, *flat: tf.Tensor) -> list[tf.Tensor]:
      def again(step: tf.Tensor, goes_on: tf.Tensor, state: list, rows: list) -> tuple:
        def one() -> list[tf.Tensor]:
          fields = [batch[step] for batch in flat[count:]]
          return call(function, [number, *state, *fields])

        def none() -> list[tf.Tensor]:
          return [*state, *(tf.zeros(spec.shape, spec.dtype) for spec in outputs)]

        found = tf.cond(goes_on, one, none) if self._halts else one()
        given = found[count:]
        rows = [row.write(step, v) for row, v in zip(rows, given, strict=True)]
        update = places["update"]
        bad = given[update["skipped"]] & tf.reduce_any(given[update["nonfinite"]])
        is_good = given[places["finite"]] & tf.logical_not(bad)
        return step + 1, goes_on & is_good, found[:count], rows

      rows = [
        tf.TensorArray(spec.dtype, steps, element_shape=spec.shape) for spec in outputs
      ]
      *_, state, rows = tf.while_loop(
        lambda step, *_: step < steps,
        again,
        [tf.constant(0), tf.constant(True), list(flat[:count]), rows],
        parallel_iterations=1,
        maximum_iterations=steps,
      )
      return [*state, *(row.stack() for row in rows)]

    return body
