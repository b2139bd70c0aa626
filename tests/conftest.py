"""Test session set-up: four logical CPU devices, made before TensorFlow's first op."""

import signal

import hypothesis
import pytest

NUM_CPUS = 4

# On a loaded machine an example may take any time; how long says nothing.
hypothesis.settings.register_profile(
  "untimed",
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")

# In the background of a script signals are ignored, also by programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


# Files that take a minute or more. They come first: else, at the end, one process has
# them to itself.
_LONG = {
  "test_equalities.py",
  "test_memory.py",
  "test_mixed_precision.py",
  "test_schedules.py",
  "test_tpu_check.py",
  "test_training.py",
  "test_xla.py",
}


def pytest_collection_modifyitems(items):
  """Puts the longest files first."""
  items.sort(key=lambda item: item.path.name not in _LONG)


@pytest.fixture(scope="session")
def tf():
  """Gives TensorFlow with four logical CPU devices."""
  import tensorflow

  cpu = tensorflow.config.list_physical_devices("CPU")[0]
  tensorflow.config.set_logical_device_configuration(
    cpu, [tensorflow.config.LogicalDeviceConfiguration() for _ in range(NUM_CPUS)]
  )
  return tensorflow


@pytest.fixture(scope="session")
def cpus(tf):
  """Names of the four logical CPU devices."""
  return [device.name for device in tf.config.list_logical_devices("CPU")]
