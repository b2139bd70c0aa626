"""A pipeline runs on the devices it is given, or says why it cannot."""

import subprocess
import sys

import pytest

from tests.pipeline import harness, toy
from tests.pipeline.networks import NETWORKS, toy_network
from tfpipe.pipeline import placement

NETWORK = toy_network(*[toy.Dense.Params()] * 3, toy.Regression.Params())


def _pipeline(tf, devices, num_partitions=2):
  return harness.make_pipeline(
    tf, NETWORK.layers(), num_partitions=num_partitions, devices=devices
  )


def test_cpus_are_counted_from_the_first(tf, cpus):
  assert placement.resolve("cpu", 3) == tuple(cpus[:3])
  assert placement.resolve("auto", 2) == tuple(cpus[:2])


@pytest.mark.parametrize(
  "spec",
  [
    "CPU:2,CPU:0",
    "cpu:2,cpu:0",
    "/CPU:2, /CPU:0",
    "/device:CPU:2,/device:CPU:0",
    "/job:localhost/replica:0/task:0/device:CPU:2,CPU:0",
  ],
)
def test_devices_may_be_named_in_any_form_and_order(tf, cpus, spec):
  assert placement.resolve(spec, 2) == (cpus[2], cpus[0])


@pytest.mark.parametrize(
  ("spec", "num_devices", "message"),
  [
    ("gpu", 1, "1 GPU devices are needed; this machine has 0: none.*name it several"),
    ("GPU:0", 1, "'GPU:0' does not exist; this machine has /device:CPU:0, /device:CPU"),
    ("XPU:0", 1, "'XPU:0' does not exist"),
    ("/job:worker/task:1/device:CPU:0", 1, "'/job:worker.*does not exist"),
    ("CPU:0,CPU:1", 3, "names 2 devices; the schedule needs 3"),
    ("CPU:0,CPU:1,CPU:2", 2, "names 3 devices; the schedule needs 2"),
    ("cpus", 2, "'cpus' is not a device name.*did you mean 'cpu'"),
    ("cpu", 5, "5 logical CPUs are needed, but TensorFlow has already started with 4"),
    ("CPU:0,CPU:4", 2, "5 logical CPUs are needed"),
  ],
)
@pytest.mark.usefixtures("cpus")
def test_missing_devices_are_an_error(spec, num_devices, message):
  with pytest.raises(ValueError, match=message):
    placement.resolve(spec, num_devices)


def test_more_stages_than_devices_are_refused(tf, cpus):
  with pytest.raises(ValueError, match="2 devices are given, schedule gpipe needs 3"):
    _pipeline(tf, cpus[:2], num_partitions=3)
  with pytest.raises(ValueError, match="4 devices are given, schedule gpipe needs 2"):
    _pipeline(tf, cpus)


def test_a_device_that_does_not_exist_is_not_replaced(tf, cpus):
  with pytest.raises(ValueError, match="'/device:CPU:9' does not exist"):
    _pipeline(tf, [cpus[0], "/device:CPU:9"])


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_stages_share_a_device_only_on_request_and_give_the_same_bits(tf, cpus, name):
  network = NETWORKS["dropout"]
  how = {"num_partitions": 3, "num_micro_batches": 4, "name": name, "remat": "cell"}
  apart, losses = harness.train(tf, network, 2, **how)
  for devices in ([cpus[1]] * 3, [cpus[1], cpus[2], cpus[1]]):
    together, same_losses = harness.train(tf, network, 2, devices=devices, **how)
    assert not harness.differences(together, apart)
    assert same_losses == losses


def test_devices_can_be_made_after_every_import_and_not_after_the_first_op():
  program = """
import importlib, pkgutil
import tensorflow as tf
import tfpipe, models, params
for package in (tfpipe, models, params):
  for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
from tfpipe.pipeline import placement
names = placement.resolve("cpu", 3)
assert names == ("/device:CPU:0", "/device:CPU:1", "/device:CPU:2"), names
assert placement.resolve("CPU:2,CPU:2", 2) == (names[2], names[2])
with tf.device(names[2]):
  assert tf.constant(1.0).device.endswith("CPU:2")
try:
  placement.resolve("cpu", 4)
except ValueError as error:
  print(error)
"""
  run = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  assert run.stdout == (
    "4 logical CPUs are needed, but TensorFlow has already started with 3; ask for the "
    "devices before its first operation\n"
  )


@pytest.mark.parametrize("kind", ["MirroredStrategy", "OneDeviceStrategy"])
def test_a_distribution_strategy_around_a_pipeline_is_refused(tf, cpus, kind):
  strategy = getattr(tf.distribute, kind)(
    cpus[:2] if kind == "MirroredStrategy" else cpus[1]
  )
  with (
    strategy.scope(),
    pytest.raises(ValueError, match=f"cannot be made under {kind}"),
  ):
    _pipeline(tf, cpus[:2])
