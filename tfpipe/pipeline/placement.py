"""Which devices a pipeline runs on; a missing one is an error, never replaced."""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.lazy import tf
from tfpipe.model import DEVICE_KINDS, check_devices


def resolve(spec: str, num_devices: int) -> tuple[str, ...]:
  """Gives the full names of the devices that a specification means.

  Logical CPUs are made as needed, which must happen before TensorFlow's first
  operation.

  Raises:
    ValueError: as `model.check_devices`, or fewer devices exist than are needed.
  """
  check_devices(spec, num_devices)
  if spec == "auto":
    spec = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
  if spec == "cpu":
    make_logical_cpus(num_devices)
  if spec in DEVICE_KINDS:
    existing = tf.config.list_logical_devices(spec.upper())
    if len(existing) < num_devices:
      raise ValueError(
        f"{num_devices} {spec.upper()} devices are needed; this machine has "
        f"{len(existing)}: {', '.join(d.name for d in existing) or 'none'}. To put "
        "several stages on one device, name it several times in devices"
      )
    return tuple(device.name for device in existing[:num_devices])
  return _named(spec.split(","))


def make_logical_cpus(num_devices: int) -> None:
  """Splits the CPU into logical devices, unless it is already.

  Raises:
    ValueError: TensorFlow has started with fewer.
  """
  cpu = tf.config.list_physical_devices("CPU")[0]
  configured = tf.config.get_logical_device_configuration(cpu) or ()
  if len(configured) >= num_devices:
    return
  parts = [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
  try:
    tf.config.set_logical_device_configuration(cpu, parts)
  except RuntimeError as error:
    raise ValueError(
      f"{num_devices} logical CPUs are needed, but TensorFlow has already started with "
      f"{max(1, len(configured))}; ask for the devices before its first operation"
    ) from error


def set_intra_op_threads(number: int) -> None:
  """Lets an operation on a CPU use this many threads; 0: TensorFlow decides.

  Raises:
    ValueError: TensorFlow has started with another number.
  """
  if number == tf.config.threading.get_intra_op_parallelism_threads():
    return
  try:
    tf.config.threading.set_intra_op_parallelism_threads(number)
  except RuntimeError as error:
    raise ValueError(
      f"pipeline.intra_op_threads={number}: TensorFlow has already started with "
      f"{tf.config.threading.get_intra_op_parallelism_threads()}; ask for the threads "
      "before its first operation"
    ) from error


def keep_bits() -> None:
  """Keeps Grappler away from the graph of a step; see `call` for why."""
  tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def existing(name: str) -> str:
  """Gives the name that TensorFlow lists a device by.

  Raises:
    ValueError: there is no such device; soft placement would take the first instead.
  """
  devices = tf.config.list_logical_devices()
  listed = {_full(device.name): device.name for device in devices}
  found = listed.get(_full(name))
  if found is None:
    raise ValueError(
      f"pipeline.devices: {name!r} does not exist; this machine has "
      f"{', '.join(sorted(listed.values()))}"
    )
  return found


def _full(name: str) -> str:
  """Completes a name such as `GPU:0`; what is missing is that of this process."""
  local = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0")
  text = name if "device:" in name else "/device:" + name.lstrip("/")
  return local.make_merged_spec(tf.DeviceSpec.from_string(text)).to_string()


def _named(names: Sequence[str]) -> tuple[str, ...]:
  if any("CPU" in name.upper() for name in names):
    make_logical_cpus(1 + max(_cpu_index(name) for name in names))
  return tuple(existing(name.strip()) for name in names)


def _cpu_index(name: str) -> int:
  kind, _, index = name.upper().rpartition(":")
  return int(index) if kind.endswith("CPU") and index.isdigit() else 0
