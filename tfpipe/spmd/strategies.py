"""Strategies, with what their devices exchange by."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tfpipe.lazy import tf
from tfpipe.spmd.collectives import Collectives, Tpu, Virtual, new_group

Exchanges: TypeAlias = "Callable[[tf.Tensor], Collectives]"
Devices: TypeAlias = "tuple[tf.distribute.Strategy, Exchanges]"

PATIENCE_SECS = 20.0
"""What a name and an address may take to be found; they answer at once or never."""
LOCAL = "local"


def virtual(devices: Sequence[str]) -> Devices:
  """Makes a strategy of logical CPUs, each of which is a device of its own."""
  group = new_group()
  strategy: Any = tf.distribute.MirroredStrategy(list(devices))
  return strategy, lambda replica: Virtual(replica, len(devices), group)


def tpu(name: str, num_cores: int) -> Devices:
  """Makes a strategy of the first cores of a Cloud TPU.

  Args:
    name: its name, its address, or `local` for the one of this machine.
    num_cores: how many.

  Raises:
    ValueError: there is no such TPU, or it has fewer cores.
  """
  resolver, topology = _started(name, num_cores)
  assignment = tf.tpu.experimental.DeviceAssignment.build(
    topology, num_replicas=num_cores
  )
  strategy = tf.distribute.TPUStrategy(
    resolver, experimental_device_assignment=assignment
  )
  return strategy, lambda _: Tpu()


def cores(name: str, num_cores: int) -> tuple[str, ...]:
  """Gives the first cores of a Cloud TPU as devices, each for itself.

  Arguments and errors are those of `tpu`.
  """
  _started(name, num_cores)
  found = tf.config.list_logical_devices("TPU")
  return tuple(core.name for core in found[:num_cores])


def _started(name: str, num_cores: int) -> tuple[Any, Any]:
  """Starts a Cloud TPU; gives its resolver and topology."""
  try:
    resolver = _within(PATIENCE_SECS, lambda: _found(name))
    if name != LOCAL:
      tf.config.experimental_connect_to_cluster(resolver)
    topology: Any = tf.tpu.experimental.initialize_tpu_system(resolver)
  # Of what has no TPU, TensorFlow says almost anything.
  except Exception as error:
    raise ValueError(f"pipeline.tpu={name!r}: {_reason(name, error)}") from error
  cores = topology.num_tasks * topology.num_tpus_per_task
  if num_cores > cores:
    raise ValueError(
      f"pipeline.tpu={name!r}: has {cores} cores; pipeline.num_partitions times "
      f"num_replicas is {num_cores}"
    )
  return resolver, topology


def _found(name: str) -> Any:
  """Asks Cloud TPU for a name, and knocks at the address."""
  resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
  address = re.fullmatch(r"grpc://(.+):(\d+)", resolver.master())
  if address:
    socket.create_connection((address[1], int(address[2])), PATIENCE_SECS).close()
  return resolver


def _within(secs: float, ask: Callable[[], Any]) -> Any:
  """Gives an answer; where none comes, the thread that waits for it is left alone.

  Raises:
    TimeoutError: there is none.
    Exception: whatever was raised.
  """
  found: list[tuple[Any, Exception | None]] = []

  def answer() -> None:
    try:
      found.append((ask(), None))
    except Exception as error:  # it is the one who waits that is to know
      found.append((None, error))

  thread = threading.Thread(target=answer, daemon=True)
  thread.start()
  thread.join(secs)
  if not found:
    raise TimeoutError(f"no answer within {secs:g} s")
  value, error = found[0]
  if error is not None:
    raise error
  return value


def _reason(name: str, error: Exception) -> str:
  """Says in a line why there is no TPU."""
  if name == LOCAL:
    what = "this machine has no Cloud TPU that TensorFlow can start"
  elif "://" in name:
    what = "no Cloud TPU answers at this address"
  else:
    what = (
      "no Cloud TPU of this name is found; names are known to machines of its project "
      "alone, and a TPU VM's own is 'local'"
    )
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  first = lines[0].partition(" used by ")[0] if lines else ""
  return f"{what} ({type(error).__name__}: {first[:200]})"
