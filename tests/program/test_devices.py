"""Device set-up: found by their names, split in time, never replaced.

A machine has one physical CPU for TensorFlow, so two physical devices of a kind are two
entries in what it lists; what is made of the list is the code under test.
"""

import subprocess
import sys

import pytest

from tfpipe.pipeline import placement

GPUS = ("/device:GPU:0", "/device:GPU:1")


@pytest.fixture
def configured(tf, monkeypatch):
  """Lets TensorFlow list two GPUs; gives the devices that are split from then on."""
  lists = {
    "list_physical_devices": tf.config.PhysicalDevice,
    "list_logical_devices": tf.config.LogicalDevice,
  }
  for function, kind in lists.items():
    monkeypatch.setattr(tf.config, function, _with_gpus(tf, function, kind))
  split = []
  set_configuration = "set_logical_device_configuration"
  monkeypatch.setattr(tf.config, set_configuration, lambda d, parts: split.append(d))
  return split


def _with_gpus(tf, function, kind):
  cpus = getattr(tf.config, function)("CPU")
  gpus = [kind(name, "GPU") for name in GPUS]

  def listed(device_type=None):
    return {"CPU": cpus, "GPU": gpus, None: [*cpus, *gpus]}[device_type]

  return listed


@pytest.mark.parametrize(
  ("spec", "expected"),
  [
    ("auto", GPUS),
    ("gpu", GPUS),
    ("GPU:1,GPU:0", GPUS[::-1]),
    ("GPU:1,GPU:1", (GPUS[1], GPUS[1])),
    ("gpu:0,CPU:3", (GPUS[0], "/device:CPU:3")),
    ("cpu", ("/device:CPU:0", "/device:CPU:1")),
  ],
)
def test_stages_go_to_two_physical_devices_as_asked(configured, spec, expected):
  assert placement.resolve(spec, 2) == expected
  # The four logical CPUs of the session are enough, and GPUs are left as they are.
  assert configured == []


@pytest.mark.parametrize("spec", ["auto", "gpu"])
def test_a_third_stage_is_not_put_on_one_of_two_physical_devices(configured, spec):
  with pytest.raises(
    ValueError,
    match=r"^3 GPU devices are needed; this machine has 2: .*GPU:0, /device:GPU:1",
  ):
    placement.resolve(spec, 3)


def test_the_cpu_is_split_and_no_gpu_is_touched(configured, tf):
  placement.make_logical_cpus(5)
  assert [device.device_type for device in configured] == ["CPU"]
  with pytest.raises(
    ValueError, match=r"'GPU:2' does not exist; .*GPU:0, /device:GPU:1"
  ):
    placement.resolve("GPU:2,GPU:0", 2)


def test_the_trainer_configures_devices_after_every_import(tmp_path):
  """Importing all of it, and planning, starts no device of TensorFlow's."""
  program = f"""
from tensorflow.python.eager import context
from tfpipe import plan, trainer
from tests.program import command
plan.make(trainer.model_params("tests.program.tiny.Image", []))
assert not context.context()._initialized
command.run("--model=tests.program.tiny.Image", "--logdir={tmp_path}",
            "--num_partitions=3", "--devices=cpu", "--max_steps=1")
import tensorflow as tf
print(len(tf.config.list_logical_devices("CPU")))
"""
  run = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  assert "devices /device:CPU:0, /device:CPU:1, /device:CPU:2\n" in run.stdout
  assert run.stdout.endswith("\n3\n")
