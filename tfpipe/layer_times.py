"""How long each layer takes: measured on a device, or from its operations.

A file of measured times (`tools/profile_layers.py` writes one) is a JSON object:

  {
    "device": "CPU, 1 thread",
    "batch": 4,
    "layers": [
      {
        "name": "stem",
        "forward": 0.01,
        "input_gradient": 0.0,
        "weight_gradient": 0.02,
        "backward": 0.02,
        "update": 0.001
      },
      ...
    ],
    "end": 0.002,
    "crowding": {"few": 1.5, "many": 4.0, "factor": 1.06}
  }

Without `crowding`, times do not depend on it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tfpipe import text_files
from tfpipe.cost import LayerCost
from tfpipe.spelling import nearest

__all__ = ["Crowding", "LayerTime", "LayerTimes", "from_costs", "read", "write"]

_MOST_SECS = 1e100  # so that sums are finite
_TIMES = ("forward", "input_gradient", "weight_gradient", "backward", "update")


@dataclasses.dataclass(frozen=True)
class LayerTime:
  """Seconds that one layer takes for one micro-batch.

  Attributes:
    name: of the layer.
    forward: F.
    input_gradient: B; the gradients at its inputs, 0 for the first layer.
    weight_gradient: W; 0 without trained weights.
    update: of its weights, once for the whole mini-batch.
    backward: BW, both gradients by one function; None if they were not timed so.

  Raises ValueError, naming layer and field, for what is no number from 0 to 1e100.
  """

  name: str
  forward: float
  input_gradient: float
  weight_gradient: float
  update: float = 0.0
  backward: float | None = None

  def __post_init__(self) -> None:
    for field in _TIMES:
      value = getattr(self, field)
      if field != "backward" or value is not None:
        _check_secs(f"layer {self.name!r}: {field}", value)

  @property
  def both(self) -> float:
    """BW, or B and W together if it was not timed."""
    if self.backward is None:
      return self.input_gradient + self.weight_gradient
    return self.backward

  @property
  def total(self) -> float:
    """Forward and backward of a micro-batch."""
    return self.forward + self.both

  def scaled(self, factor: float) -> LayerTime:
    """Returns the times of micro-batches `factor` times as large."""
    return LayerTime(
      self.name,
      factor * self.forward,
      factor * self.input_gradient,
      factor * self.weight_gradient,
      self.update,
      None if self.backward is None else factor * self.backward,
    )


@dataclasses.dataclass(frozen=True)
class Crowding:
  """How much longer actions take where more micro-batches are in flight.

  What waits longer for its backward is no longer in a cache when it is read, and what
  is written finds no memory there that was in use a moment ago.

  Attributes:
    few: micro-batches that a device kept when the times were taken, its most, as a mean
      over the devices; see `schedule.memory.InFlight.kept`.
    many: how many it kept when they took
    factor: times as long.

  Raises ValueError, naming the field, unless 0 <= few <= many <= 1e100 and the factor
  is above 0 and at most 1e100.
  """

  few: float = 0.0
  many: float = 0.0
  factor: float = 1.0

  def __post_init__(self) -> None:
    for field, value in dataclasses.asdict(self).items():
      _check_secs(f"crowding: {field}", value)
    if self.few > self.many:
      raise ValueError(f"crowding: few is {self.few}, above many, {self.many}")
    if not self.factor:
      raise ValueError("crowding: factor is 0: expected a number above 0")

  def at(self, kept: float) -> float:
    """Returns how many times as long actions take: on the line between the two."""
    if self.few == self.many:
      return 1.0
    share = (kept - self.few) / (self.many - self.few)
    return 1.0 + (self.factor - 1.0) * min(1.0, max(0.0, share))


@dataclasses.dataclass(frozen=True)
class LayerTimes:
  """Times of all layers of a network, in order.

  Attributes:
    device: what was measured, for people.
    batch: rows of the micro-batch.
    layers: one time a layer.
    end: seconds that a step takes at its end besides the updates of weights, on every
      device: moving averages, checks and counters.
    crowding: what more micro-batches in flight change.

  Raises ValueError for a batch that is no whole number >= 1, no layers, two of one
  name, or an end that is no number from 0 to 1e100.
  """

  device: str
  batch: int
  layers: tuple[LayerTime, ...]
  end: float = 0.0
  crowding: Crowding = dataclasses.field(default_factory=Crowding)

  def __post_init__(self) -> None:
    _check_secs("end", self.end)
    if type(self.batch) is not int or not 1 <= self.batch <= text_files.MOST:
      raise ValueError(f"batch is {self.batch!r}: expected a whole number >= 1")
    if not self.layers:
      raise ValueError("layers is empty: expected the times of at least one layer")
    seen: set[str] = set()
    for layer in self.layers:
      if layer.name in seen:
        raise ValueError(f"layer {layer.name!r} is there twice")
      seen.add(layer.name)

  def check_names(self, names: Sequence[str]) -> None:
    """Raises ValueError, naming the first layer that differs, unless they are these."""
    here, known = [layer.name for layer in self.layers], set(names)
    for name in here:
      if name not in known:
        raise ValueError(
          f"layer {name!r} is none of the network's {len(names)}{nearest(name, names)}"
        )
    known = set(here)
    for name in names:
      if name not in known:
        raise ValueError(f"the network's layer {name!r} has no times")
    for index, (found, expected) in enumerate(zip(here, names, strict=True)):
      if found != expected:
        raise ValueError(f"layer {index} is {found!r}, but {expected!r} in the network")

  def for_batch(self, batch: int) -> tuple[LayerTime, ...]:
    """Returns the times of micro-batches of other rows: as many times as long."""
    if batch == self.batch:
      return self.layers
    return tuple(layer.scaled(batch / self.batch) for layer in self.layers)


def from_costs(costs: Sequence[LayerCost], flops_per_sec: float = 1.0) -> LayerTimes:
  """Takes operations for time: `flops_per_sec` of 1 gives times in operations.

  The gradient at the inputs costs a forward, that of the weights another. A product of
  two inputs has a gradient for each of both. Nothing needs the gradient at the
  network's own input. Memory-bound layers take longer than this says.

  Args:
    costs: of all layers, in order, for one micro-batch.
    flops_per_sec: of the device.

  Returns:
    times with device '' and batch 1: they are those of the costs' own micro-batch.
  """
  layers = []
  for index, cost in enumerate(costs):
    forward = cost.flops / flops_per_sec
    of_two_inputs = 0 if cost.param_bytes else cost.matmul_flops / flops_per_sec
    backward = forward + of_two_inputs if index else 0.0
    weights = forward if cost.param_count else 0.0
    layers.append(LayerTime(cost.name, forward, backward, weights))
  return LayerTimes("", 1, tuple(layers))


def write(path: str | pathlib.Path, times: LayerTimes) -> None:
  """Writes times as JSON, a layer a line."""
  rows = ",\n".join(
    "    " + json.dumps(dataclasses.asdict(layer)) for layer in times.layers
  )
  pathlib.Path(path).write_text(
    f'{{\n  "device": {json.dumps(times.device)},\n  "batch": {times.batch},\n'
    f'  "layers": [\n{rows}\n  ],\n  "end": {json.dumps(times.end)},\n'
    f'  "crowding": {json.dumps(dataclasses.asdict(times.crowding))}\n}}\n'
  )


def read(path: str | pathlib.Path) -> LayerTimes:
  """Reads what `write` writes.

  Raises:
    LookupError: there is no such file.
    ValueError: its content has another form, and the file, the layer and the field are
      named; or it is in the home folder of nobody.
  """
  file = text_files.find(path, f"layer times {str(path)!r}")
  try:
    return _times(text_files.from_json(text_files.read(file)))
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _times(fields: Any) -> LayerTimes:
  if isinstance(fields, dict):
    fields = {"crowding": dataclasses.asdict(Crowding()), **fields}
  _check_fields(fields, ("device", "batch", "layers", "end", "crowding"), "the file")
  if not isinstance(fields["device"], str):
    raise ValueError(f"device is {fields['device']!r}: expected a text")
  if not isinstance(fields["layers"], list):
    raise ValueError(f"layers is {fields['layers']!r}: expected a list")
  layers = []
  for index, layer in enumerate(fields["layers"]):
    _check_fields(layer, ("name", *_TIMES), f"layers[{index}]")
    if not isinstance(layer["name"], str):
      raise ValueError(f"layers[{index}]: name is {layer['name']!r}: expected a text")
    layers.append(LayerTime(**layer))
  _check_fields(fields["crowding"], ("few", "many", "factor"), "crowding")
  crowding = Crowding(**fields["crowding"])
  return LayerTimes(
    fields["device"], fields["batch"], tuple(layers), fields["end"], crowding
  )


def _check_secs(what: str, value: Any) -> None:
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not is_number or not 0 <= value <= _MOST_SECS:
    raise ValueError(
      f"{what} is {value!r}: expected a finite number >= 0, at most {_MOST_SECS:g}"
    )


def _check_fields(fields: Any, known: Sequence[str], where: str) -> None:
  if not isinstance(fields, dict):
    raise ValueError(f"{where} is {fields!r}: expected an object")
  for name in fields:
    if name not in known:
      raise ValueError(
        f"{where}: field {name!r} is not one of {', '.join(known)}"
        f"{nearest(name, known)}"
      )
  missing = [name for name in known if name not in fields]
  if missing:
    raise ValueError(f"{where}: {', '.join(missing)} missing")
