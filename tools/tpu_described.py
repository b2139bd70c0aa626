"""A TPUStrategy whose cores are only described: graphs are built, nothing is run."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

from tfpipe.lazy import tf


def strategy(num_cores: int, cores_per_replica: int = 1) -> tf.distribute.Strategy:
  """Makes one for chips of one core in a row; call it with a graph as default.

  Args:
    num_cores: of all replicas.
    cores_per_replica: logical cores of each replica.
  """
  topology = _topology(num_cores)
  return tf.distribute.TPUStrategy(
    _resolver(topology, num_cores),
    experimental_device_assignment=tf.tpu.experimental.DeviceAssignment.build(
      topology,
      computation_shape=[cores_per_replica, 1, 1, 1],
      num_replicas=num_cores // cores_per_replica,
    ),
  )


def _topology(num_cores: int) -> Any:
  places = [[[core, 0, 0, 0] for core in range(num_cores)]]
  return tf.tpu.experimental.Topology(
    mesh_shape=[num_cores, 1, 1, 1], device_coordinates=np.array(places, np.int32)
  )


def _resolver(topology: Any, num_cores: int) -> Any:
  """Makes what tells TPUStrategy of the cores."""

  class Described(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Says what it is told, and asks nobody."""

    def __init__(self) -> None:
      self.task_type, self.task_id, self._tpu = "worker", 0, "described"

    def master(self, *_: Any, **__: Any) -> str:
      return ""

    def cluster_spec(self) -> Any:
      return tf.train.ClusterSpec({})

    def get_tpu_system_metadata(self) -> Any:
      devices = [
        tf.config.LogicalDevice(
          f"/job:localhost/replica:0/task:0/device:TPU:{core}", "TPU"
        )
        for core in range(num_cores)
      ]
      return types.SimpleNamespace(
        num_cores=num_cores,
        num_hosts=1,
        num_of_cores_per_host=num_cores,
        topology=topology,
        devices=devices,
      )

  return Described()
