"""Compiles a program for TPU cores with libtpu, in a process without TensorFlow.

  python -m tools.tpu_compiler TOPOLOGY NUM_CORES STABLEHLO_FILE

`tools.tpu_check --stage=aot` starts it: libtpu ends the process of who gives it what it
cannot compile. Prints one line of JSON. No TPU is needed, and none is used.
"""

# jax is in an extra of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections import Counter
from typing import Any

from tools import tpu_memory

ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  # Else libtpu looks for the metadata server of a TPU VM.
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  # Else a second process that has libtpu ends.
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""What libtpu must find where there is no TPU."""

_EXCHANGE = re.compile(r" (collective-permute|all-reduce)(?:-start)?\(")
_USED = re.compile(r"(?:Used |HLO temporaries \()([\d.]+)([KMG])\b", re.IGNORECASE)


def compile_text(topology: str, num_cores: int, text: str) -> dict[str, Any]:
  """Compiles a StableHLO module.

  Args:
    topology: as libtpu names it, `v5e:2x2`.
    num_cores: replicas of the program, on the first cores.
    text: the module.

  Returns:
    `device` and `secs`; `code_bytes`, `flops`, and `exchanges`, counts by kind; or, if
    it does not fit, `total`, what it would need.

  Raises:
    ValueError: the compiler refuses it.
  """
  import numpy as np

  # No public part of jax compiles a module of one's own: its version is pinned.
  from jax._src.interpreters import mlir
  from jax._src.lib import xla_client
  from jax.experimental import topologies
  from jaxlib.mlir import ir

  # TensorFlow has one device for the two cores of a chip of v4, as jax has.
  cores = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
  found = topologies.get_topology_desc(topology, platform="tpu", **cores)
  devices = found.devices[:num_cores]
  options = xla_client.CompileOptions()
  build = options.executable_build_options
  options.num_replicas = build.num_replicas = num_cores
  options.num_partitions = build.num_partitions = 1
  options.device_assignment = xla_client.DeviceAssignment.create(
    np.array([[device.id] for device in devices])
  )
  with mlir.make_ir_context():
    module = ir.Module.parse(text)
  start, result = time.monotonic(), {"device": devices[0].device_kind}
  try:
    made = devices[0].client.compile(
      module, xla_client.DeviceList(tuple(devices)), options
    )
  except xla_client.XlaRuntimeError as error:
    return result | {"total": needed(str(error)), "secs": time.monotonic() - start}
  result["secs"] = time.monotonic() - start
  cost = made.cost_analysis()
  cost = cost[0] if isinstance(cost, list) else cost
  (module,) = made.hlo_modules()
  return result | {
    "code_bytes": made.get_compiled_memory_stats().generated_code_size_in_bytes,
    "flops": cost["flops"],
    "exchanges": Counter(_EXCHANGE.findall(module.to_string())),
  }


def needed(message: str) -> int:
  """Reads how many bytes what does not fit would need, at least.

  Raises:
    ValueError: the compiler has something else to say.
  """
  used = _USED.search(message)
  if not used:
    raise ValueError(message)
  return int(float(used[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[used[2]])


def main(topology: str, num_cores: str, path: str) -> None:
  """Compiles a file, and prints what is found."""
  text = pathlib.Path(path).read_text()
  with tempfile.TemporaryDirectory() as folder:
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    try:
      found = compile_text(topology, int(num_cores), text)
    except ValueError as error:
      sys.exit(f"libtpu: {str(error).splitlines()[0]}")
    for report in pathlib.Path(folder).glob("*memory-usage-report.txt"):
      found = dataclasses.asdict(tpu_memory.read(report.read_text())) | found
    for assigned in pathlib.Path(folder).glob("*-buffer-assignment.txt"):
      found["arrays"] = tpu_memory.arrays(assigned.read_text())
  print(json.dumps(found))


if __name__ == "__main__":
  os.environ.update(ENVIRONMENT)
  main(*sys.argv[1:])
