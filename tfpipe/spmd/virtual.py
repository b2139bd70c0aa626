"""Runs the program that is made for TPU cores on logical CPU devices.

It is traced once, as on TPUs, and called on each device with the device's number. Only
the exchanges are others: TPU cores have an operation for a permutation, CPUs have one
by which everybody gets everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfpipe.lazy import tf
from tfpipe.spmd.collectives import Virtual, new_group
from tfpipe.spmd.program import Program
from tfpipe.traced import specs, trace

Arrays = Mapping[str, np.ndarray]


class VirtualDevices:
  """The devices of a program as logical CPUs, each with its state.

  Args:
    program: what they run.
    devices: their names, one for each replica.

  Attributes:
    states: of each device, as arrays.

  Raises:
    ValueError: too few devices, or too many.
  """

  def __init__(self, program: Program, devices: Sequence[str]) -> None:
    if len(devices) != program.num_replicas:
      raise ValueError(
        f"{len(devices)} devices are given, the program is for {program.num_replicas}"
      )
    self._program = program
    self._devices = list(devices)
    self._step: Any = None
    self._outputs: Any = None
    self.states: list[dict[str, np.ndarray]] = program.first_state()

  def step(self, batches: Sequence[Arrays]) -> list[dict]:
    """Trains on a mini-batch.

    Args:
      batches: that of each pipeline.

    Returns:
      for each device what `Program.step` gives, as arrays.
    """
    stages = self._program.network.sizes.stages
    given = [
      {"state": state, "batch": dict(batches[number // stages])}
      for number, state in enumerate(self.states)
    ]
    tensors = tf.nest.map_structure(tf.constant, given)
    if self._step is None:
      self._step = self._trace(tensors)
    found = self._step(*tf.nest.flatten(tensors))
    outputs = tf.nest.pack_sequence_as([self._outputs] * len(given), found)
    outputs = tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)
    self.states = [output["state"] for output in outputs]
    return outputs

  def values(self, vectors: str = "weights") -> dict[str, np.ndarray]:
    """Gives the arrays in `weights`, `fixed` or `slots` by name.

    Raises:
      ValueError: copies are not equal.
    """
    return self.named(vectors, [state[vectors] for state in self.states])

  def metrics(self, output: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gives sum and weight of each metric in what a device gave, by name."""
    return dict(zip(self._program.network.metrics, output["metrics"], strict=True))

  def named(self, layout: str, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Names what is in the vectors of all devices; errors as of `values`."""
    stages = self._program.network.sizes.stages
    for number, vector in enumerate(vectors):
      if not np.array_equal(vector, vectors[number % stages], equal_nan=True):
        raise ValueError(f"{layout} of device {number} are not those of its stage")
    return self._program.layouts[layout].unpack(np.stack(vectors[:stages]))

  def _trace(self, tensors: Sequence[dict]) -> Any:
    """Traces the program once, and a function that calls it on each device."""
    own = tf.nest.flatten(tensors[0])
    group = new_group()

    def program(replica: tf.Tensor, *flat: tf.Tensor) -> list[tf.Tensor]:
      given = tf.nest.pack_sequence_as(tensors[0], flat)
      exchanges = Virtual(replica, self._program.num_replicas, group)
      found = self._program.step(exchanges, replica, given["state"], given["batch"])
      self._outputs = tf.nest.map_structure(lambda _: None, found)
      return tf.nest.flatten(found)

    function = trace(program, [tf.TensorSpec([], tf.int32), *specs(own)])

    def everywhere(*flat: tf.Tensor) -> list[tf.Tensor]:
      outputs = []
      for number, device in enumerate(self._devices):
        args = flat[number * len(own) : (number + 1) * len(own)]
        with tf.device(device):
          args = [tf.constant(number), *map(tf.identity, args)]
          function.add_to_graph(tf.compat.v1.get_default_graph())
          outputs += tf.raw_ops.PartitionedCall(
            args=args, Tout=[tensor.dtype for tensor in function.outputs], f=function
          )
      return outputs

    return tf.function(everywhere, autograph=False).get_concrete_function(
      *specs(own * len(self._devices))
    )
