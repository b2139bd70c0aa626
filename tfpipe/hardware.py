"""Devices and links, as numbers: what a plan needs to know of hardware.

A device is what `tf.device` names: a core of TPU v2 and v3 (two on a chip), a chip of
the later TPUs (whose runtime joins two cores, where there are two, into one device), a
whole GPU. Peaks are those of the number format in which the device multiplies float32
matrices as TensorFlow asks it to: bfloat16 on TPUs, TF32 on GPUs from A100 on, else
float32; without sparsity. A link is one direction of what joins two neighbours.

Memory is counted in powers of 1024 throughout. Makers print the same number as GB or
as GiB (95 of a TPU v5p, on pages of two years) and mean the latter: memory is built in
powers of two, and a GPU sold with 80 GB has room for more than 80 * 10**9 bytes.

Sources: for TPUs the pages "TPU v2" to "TPU v6e" of the Cloud TPU documentation (memory
and peak of a chip; the links of a chip from its interconnect bandwidth and number of
ports) and, for the links of v2 and v3, Jouppi et al., "A domain-specific supercomputer
for training deep neural networks" (CACM 2020), table 1. For GPUs NVIDIA's data sheets.
No maker prints a latency: `LATENCY_SECS` is a round assumption.
"""

from __future__ import annotations

import dataclasses

from tfpipe import text_files
from tfpipe.spelling import nearest, nearest_or_all

__all__ = ["LATENCY_SECS", "Hardware", "find", "names", "register"]

LATENCY_SECS = 1e-5
"""From the end of an action to its result on another device: an assumption."""

_LEAST_PER_SEC = 1e-100


@dataclasses.dataclass(frozen=True)
class Hardware:
  """A kind of device, and the links between such devices.

  Attributes:
    name: how `--hardware` calls it.
    memory_bytes: memory of one device.
    flops_per_sec: peak of one device, a multiply-add being two operations.
    number_format: what the peak is for.
    link_bytes_per_sec: one direction between two devices.
    link_latency_secs: what a transfer takes besides its bytes.
    efficiency: share of the peak that is reached; 1 gives the least time possible.

  Raises ValueError, naming the field, for a number that is out of range; TypeError for
  what is no number or no text.
  """

  name: str
  memory_bytes: int
  flops_per_sec: float
  number_format: str
  link_bytes_per_sec: float
  link_latency_secs: float = LATENCY_SECS
  efficiency: float = 1.0

  def __post_init__(self) -> None:
    for field in ("name", "number_format"):
      value = getattr(self, field)
      if not isinstance(value, str):
        raise TypeError(f"hardware {field}={value!r}: must be a text")
    if not self.name:
      raise ValueError("hardware name='': must be a text of at least one letter")
    for field in ("memory_bytes", "flops_per_sec", "link_bytes_per_sec"):
      self._check(field, "a finite number above 0", above=True)
    if self.memory_bytes != int(self.memory_bytes):
      raise ValueError(self._message("memory_bytes", "a whole number above 0"))
    self._check("link_latency_secs", "a finite number >= 0", above=False)
    self._check("efficiency", "a number above 0, at most 1", above=True)
    if self.efficiency > 1:
      raise ValueError(self._message("efficiency", "a number above 0, at most 1"))
    # Times are numbers divided by these, and must be finite.
    if self.link_bytes_per_sec < _LEAST_PER_SEC:
      message = self._message("link_bytes_per_sec", f"at least {_LEAST_PER_SEC}")
      raise ValueError(message)
    if self.flops_per_sec * self.efficiency < _LEAST_PER_SEC:
      allowed = f"at least {_LEAST_PER_SEC} when multiplied by efficiency"
      raise ValueError(self._message("flops_per_sec", allowed))

  def transfer_secs(self, num_bytes: int) -> float:
    """Returns how long bytes are on the way between two devices."""
    return self.link_latency_secs + num_bytes / self.link_bytes_per_sec

  def _check(self, field: str, allowed: str, *, above: bool) -> None:
    value = getattr(self, field)
    if not _is_number(value):
      raise TypeError(self._message(field, allowed))
    if not 0 <= value <= text_files.MOST or (above and value == 0):
      raise ValueError(self._message(field, allowed))

  def _message(self, field: str, allowed: str) -> str:
    return f"hardware {self.name}: {field}={getattr(self, field)!r}: must be {allowed}"


def register(hardware: Hardware) -> Hardware:
  """Adds a kind of device to the table; ValueError if its name is taken."""
  if hardware.name in _TABLE:
    raise ValueError(f"hardware {hardware.name!r} is registered already")
  _TABLE[hardware.name] = hardware
  return hardware


def names() -> tuple[str, ...]:
  """Lists the names in the table."""
  return tuple(_TABLE)


def find(name: str) -> Hardware:
  """Returns a kind of device by name, or from a file whose name ends in `.json`.

  The file is an object with the fields of `Hardware`; the last two may be left out.

  Raises:
    LookupError: no such name, or no such file.
    ValueError, TypeError: the file is no such object; the field is named.
  """
  if name in _TABLE:
    return _TABLE[name]
  if not name.endswith(".json"):
    raise LookupError(
      f"hardware {name!r} is not one of {', '.join(_TABLE)}, nor a file .json"
      f"{_nearest(name)}"
    )
  path = text_files.find(name, f"hardware {name!r}")
  try:
    return _from_json(text_files.read(path))
  except (ValueError, TypeError) as error:
    raise type(error)(f"{name}: {error}") from error


def _from_json(text: str) -> Hardware:
  fields = text_files.from_json(text)
  if not isinstance(fields, dict):
    raise TypeError(f"expected a JSON object, not {type(fields).__name__}")
  known = [field.name for field in dataclasses.fields(Hardware)]
  for name in fields:
    if name not in known:
      raise ValueError(f"unknown field {name!r}{nearest_or_all(name, known)}")
  required = [
    field.name
    for field in dataclasses.fields(Hardware)
    if field.default is dataclasses.MISSING
  ]
  missing = [name for name in required if name not in fields]
  if missing:
    raise ValueError(f"field {', '.join(missing)} missing")
  return Hardware(**fields)


def _nearest(name: str) -> str:
  """Suggests the devices of which a name says the first part, or the nearest."""
  longer = [known for known in _TABLE if name and known.startswith(name.lower())]
  if longer:
    return f"; did you mean {' or '.join(map(repr, longer))}?"
  return nearest(name, _TABLE)


def _is_number(value: object) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


_GIB = 2**30
_TABLE: dict[str, Hardware] = {}

for _row in (
  # TPU v2: 45 TFLOP/s, 16 GiB a chip, of two cores; links of 496 Gbit/s.
  Hardware("tpu_v2", 8 * _GIB, 22.5e12, "bfloat16", 62e9),
  # TPU v3: 123 TFLOP/s, 32 GiB a chip, of two cores; links of 656 Gbit/s.
  Hardware("tpu_v3", 16 * _GIB, 61.5e12, "bfloat16", 82e9),
  # TPU v4: 275 TFLOP/s, 32 GiB a chip; 2,400 Gbit/s over 6 links.
  Hardware("tpu_v4", 32 * _GIB, 275e12, "bfloat16", 50e9),
  # TPU v5e: 197 TFLOP/s, 16 GB a chip; 400 GB/s in both directions, over 4 links.
  Hardware("tpu_v5e", 16 * _GIB, 197e12, "bfloat16", 50e9),
  # TPU v5p: 459 TFLOP/s, 95 GiB a chip; 1,200 GB/s in both directions, over 6 links.
  Hardware("tpu_v5p", 95 * _GIB, 459e12, "bfloat16", 100e9),
  # TPU v6e: 918 TFLOP/s, 32 GB a chip; 800 GB/s in both directions, over 4 links (as
  # the page says now; it has said 3,584 Gbit/s, and 3,200).
  Hardware("tpu_v6e", 32 * _GIB, 918e12, "bfloat16", 100e9),
  # P100, PCIe: 9.3 TFLOP/s, 16 GB; PCIe 3.0 x16, 16 GB/s.
  Hardware("p100", 16 * _GIB, 9.3e12, "float32", 16e9),
  # V100, SXM2: 15.7 TFLOP/s in float32 (its tensor cores take float16 only), 16 or
  # 32 GB; NVLink 300 GB/s in both directions, over 6 links: two of them to a neighbour.
  Hardware("v100_16gb", 16 * _GIB, 15.7e12, "float32", 50e9),
  Hardware("v100_32gb", 32 * _GIB, 15.7e12, "float32", 50e9),
  # A100, SXM: 156 TFLOP/s, 40 or 80 GB; NVLink 600 GB/s in both directions.
  Hardware("a100_40gb", 40 * _GIB, 156e12, "TF32", 300e9),
  Hardware("a100_80gb", 80 * _GIB, 156e12, "TF32", 300e9),
  # H100, SXM: 989 TFLOP/s with sparsity, half without, 80 GB; NVLink 900 GB/s in both
  # directions. H200: the same with 141 GB.
  Hardware("h100", 80 * _GIB, 494.5e12, "TF32", 450e9),
  Hardware("h200", 141 * _GIB, 494.5e12, "TF32", 450e9),
  # A logical CPU device: one core at 2 GHz with two units of 8 float32 multiply-adds,
  # and a share of the host's memory. No public figure: round numbers.
  Hardware("cpu", 8 * _GIB, 64e9, "float32", 10e9),
):
  register(_row)
