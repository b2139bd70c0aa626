"""What follows from Params before anything is simulated: the cut and the schedule."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfpipe import (
  backend,
  layer_times,
  memory,
  memory_bound,
  model,
  partition,
  schedule,
  schedule_search,
  text_files,
)
from tfpipe.cost import LayerCost
from tfpipe.hardware import Hardware
from tfpipe.layer_times import LayerTime
from tfpipe.memory import LayerState, StageMemory
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.schedule.schedule import Schedule
from tfpipe.simulate import StageTimes, simulate
from tfpipe.timeline import Secs, Timeline

__all__ = ["Draft", "effort", "fewest_partitions", "make"]


@dataclasses.dataclass(frozen=True)
class Draft:
  """A cut and a schedule, and all that predictions are made from.

  Attributes:
    network: the network.
    pipe: the Params `pipeline`.
    costs: of each layer, for one micro-batch.
    layers: times of each layer for one micro-batch, in seconds or in FLOPs.
    measured: the file of times and its rows a micro-batch; None if they are FLOPs.
    cells: half-open layer range of each stage.
    schedule: the actions of every device.
  """

  network: Network
  pipe: Params
  costs: tuple[LayerCost, ...]
  layers: tuple[LayerTime, ...]
  measured: layer_times.LayerTimes | None
  cells: partition.Cells
  schedule: Schedule

  @functools.cached_property
  def crowded(self) -> float:
    """How many times as long as measured actions take, for what is in flight."""
    if not self.measured:
      return 1.0
    kept = schedule.in_flight(self.schedule).kept
    return self.measured.crowding.at(float(statistics.mean(kept)))

  def times(self, hardware: Hardware | None) -> StageTimes:
    """Returns the times of the stages: in FLOPs if nothing is known of seconds.

    With hardware, the update of a stage that has copies takes the way of the weights
    to each copy and that of its gradients back.
    """
    factor = self.crowded
    if hardware and not self.measured:
      factor = 1 / (hardware.flops_per_sec * hardware.efficiency)
    times = _stage_times(self.layers, self.cells, self.pipe.remat, factor)
    if self.measured:
      # It is as long on every device, and told by stage.
      devices, end = self.schedule.placement[0], self.measured.end
      ends = [end / devices.count(device) for device in devices]
      update = [own + at_end for own, at_end in zip(times.update, ends, strict=True)]
      times = dataclasses.replace(times, update=update)
    copies = len(self.schedule.placement) - 1
    if hardware is None or not copies:
      return times
    updates = [
      own + copies * sum(map(hardware.transfer_secs, (state.weights, state.gradients)))
      for own, state in zip(times.update, map(self._state_of, self.cells), strict=True)
    ]
    return dataclasses.replace(times, update=updates)

  def _state_of(self, cell: tuple[int, int]) -> LayerState:
    states = self.network.states[cell[0] : cell[1]]
    return LayerState(
      weights=sum(state.weights for state in states),
      gradients=sum(state.gradients for state in states),
    )

  def timeline(self, hardware: Hardware | None) -> Timeline:
    """Simulates a step; without hardware, a transfer takes no time."""
    times = self.times(hardware)
    if hardware is None:
      return simulate(self.schedule, times)
    links = [
      self.costs[end - 1].border_bytes / hardware.link_bytes_per_sec
      for _, end in self.cells[:-1]
    ]
    return simulate(self.schedule, times, hardware.link_latency_secs, links)

  @property
  def same_devices(self) -> tuple[int, ...]:
    """For each device the first that is the same real one; see `model`."""
    return model.same_devices(self.pipe.devices, self.schedule.num_devices)

  def memory(self, remat: str | None = None) -> tuple[StageMemory, ...]:
    """Predicts the memory of every stage, as drafted or with another kind of remat."""
    return tuple(row for rows in self._memory(remat) for row in rows)

  def most_bytes(self, limit: float = math.inf) -> int:
    """Returns what the device needs that needs most; of one beyond `limit`, any."""
    same = self.same_devices
    totals = [0] * len(same)
    for rows in self._memory():
      first = same[rows[0].device]
      totals[first] += sum(row.total for row in rows)
      if totals[first] > limit:
        return totals[first]
    return max(totals)

  def _memory(self, remat: str | None = None) -> Iterator[list[StageMemory]]:
    if remat is None and self.pipe.remat == "layer":
      remat = "layer"
    return memory.by_device(
      self.costs,
      self.network.states,
      self.cells,
      self.schedule,
      self.network.field_bytes(self.pipe.num_micro_batches),
      remat,
    )


def make(pipe: Params, network: Network) -> Draft:
  """Makes the schedule and cuts the layers into as many cells as it has stages.

  Layers are cut so that the busiest stage has as little to do as possible: by the times
  of the file `layer_times`, else by FLOPs, of forward, recomputation and backward.

  Args:
    pipe: the Params `pipeline` of a run, checked by `model.check`.
    network: of that run.

  Raises:
    ValueError, LookupError, OSError: a field is not allowed for this network and its
      batches, or a file is missing.
  """
  costs = network.costs(pipe.num_micro_batches)
  measured, layers = None, layer_times.from_costs(costs).layers
  if pipe.layer_times:
    measured, layers = _measured(pipe, network)
  made, cells = _schedule_and_cells(pipe, layers)
  model.check_devices(pipe.devices, made.num_devices)
  model.check_cpus(pipe.devices, made.num_devices)
  return Draft(network, pipe, costs, layers, measured, cells, made)


def effort(pipe: Params) -> int:
  """Returns about how many actions are put in order for a schedule, before it is made.

  Those of a schedule that is searched count as many times as that takes longer.
  """
  stages = pipe.num_partitions * max(1, pipe.stages_per_device)
  if pipe.schedule in schedule.NAMES:
    stages = schedule.num_stages(
      pipe.schedule, pipe.num_partitions, pipe.stages_per_device
    )
  times = 1
  if pipe.schedule == model.ZB_AUTO:
    times = schedule_search.EFFORT * (2 if pipe.remat == "cell" else 1)
  return 4 * times * stages * pipe.num_micro_batches


def fewest_partitions(pipe: Params, network: Network, limit: int) -> int:
  """Returns a number of partitions below which no device list fits; cheap to ask.

  Args:
    pipe: the Params `pipeline` of a run; its number of partitions does not matter.
    network: of that run.
    limit: bytes of a device.

  Returns:
    more than there are layers, if no number is enough.
  """
  whole = -(-sum(map(memory_bound.state_bytes, network.states)) // limit)
  name, stages = pipe.schedule, pipe.stages_per_device or 1
  if name in schedule.NAMES:
    stages = schedule.num_stages(name, 1, pipe.stages_per_device)
  copies = "num_pairs" in model.schedule_options(name)
  if schedule.is_file(name) or stages > 1 or copies:
    return max(1, whole)  # a device has several stages
  return memory_bound.least_cells(
    network.costs(pipe.num_micro_batches),
    network.states,
    limit,
    remat=pipe.remat,
    in_flight=pipe.num_micro_batches if name == "gpipe" else 1,
    adds=pipe.num_micro_batches > 1,
  )


def _measured(
  pipe: Params, network: Network
) -> tuple[layer_times.LayerTimes, tuple[LayerTime, ...]]:
  path, rows = pipe.layer_times, network.batch_size() // pipe.num_micro_batches
  try:
    times = layer_times.read(path)
  except (LookupError, ValueError) as error:
    raise type(error)(f"pipeline.layer_times: {error}") from error
  try:
    times.check_names(network.names)
    return times, times.for_batch(rows)
  except ValueError as error:
    raise ValueError(f"pipeline.layer_times={path!r}: {error}") from error


class _Work(NamedTuple):
  """What is done of a micro-batch besides its forward and backward.

  Attributes:
    again: the part that is computed again.
    split: the part whose backward is split.
  """

  again: float
  split: float


def _schedule_and_cells(
  pipe: Params, layers: Sequence[LayerTime]
) -> tuple[Schedule, partition.Cells]:
  """Makes the schedule and cuts the layers into as many cells as it has stages."""
  number = pipe.num_partitions
  if number > len(layers):
    raise ValueError(
      f"pipeline.num_partitions={number}: must be at most the number of layers, "
      f"{len(layers)}"
    )
  if pipe.schedule == model.ZB_AUTO:
    return _searched(pipe, layers)
  if schedule.is_file(pipe.schedule):
    text_files.find(pipe.schedule, f"pipeline.schedule={pipe.schedule!r}")
  else:
    stages = schedule.num_stages(pipe.schedule, number, pipe.stages_per_device)
    _check_number(pipe, layers, stages)  # before a long schedule is made in vain
  try:
    made = schedule.make(
      pipe.schedule,
      number,
      backend.micro_batches_each(pipe),
      pipe.remat == "cell",
      **{option: pipe.Get(option) for option in model.SCHEDULE_OPTIONS},
    )
  except schedule.SizeError as error:
    raise _in_params(pipe, error) from error
  if schedule.is_file(pipe.schedule) and made.num_updates > 1:
    raise ValueError(
      f"pipeline.schedule={pipe.schedule!r}: schedule {made.name} has "
      f"{made.num_updates} updates; one can be trained"
    )
  backend.check_schedule(pipe, made)
  if pipe.backend == "devices" and not schedule.is_file(pipe.schedule):
    made = schedule.without_needless_recomputation(made)
  return made, _cut(pipe, layers, _works(made))


def _searched(
  pipe: Params, layers: Sequence[LayerTime]
) -> tuple[Schedule, partition.Cells]:
  """Cuts and searches as if all were computed again, then by what was found to be."""
  work = _Work(again=float(pipe.remat == "cell"), split=1.0)
  works = [work] * pipe.num_partitions * (pipe.stages_per_device or 1)
  found: dict[partition.Cells, tuple[Secs, Schedule]] = {}
  for _ in range(2):
    cells = _cut(pipe, layers, works)
    if cells not in found:
      times = _stage_times(layers, cells, pipe.remat)
      made = _zero_bubble(pipe, times)
      found[cells] = simulate(made, times).makespan, made
      works = _works(made)
  best = min(found, key=lambda cells: found[cells][0])
  return found[best][1], best


def _works(made: Schedule) -> list[_Work]:
  """Gives what is done of a micro-batch in each stage, in the mean of all."""
  sizes = Counter[tuple[str, int]]()
  for (kind, stage, size), number in Counter(
    (kind, stage, size)
    for actions in made.actions
    for kind, stage, _, _, size, _ in actions
  ).items():
    sizes[kind, stage] += size * number
  return [
    _Work(
      sizes["R", stage] / made.num_micro_batches,
      sizes["W", stage] / made.num_micro_batches,
    )
    for stage in range(made.num_stages)
  ]


def _in_params(pipe: Params, error: schedule.SizeError) -> ValueError:
  """Says of which of the Params a schedule does not allow the value."""
  field = "num_partitions" if error.field == "num_devices" else error.field
  own = "0, or " if field in model.SCHEDULE_OPTIONS else ""
  return ValueError(
    f"pipeline.{field}={error.value!r} with schedule {pipe.schedule}: must be {own}"
    f"{error.allowed}"
  )


def _cut(
  pipe: Params, layers: Sequence[LayerTime], works: Sequence[_Work]
) -> partition.Cells:
  """Cuts layers into cells, a stage each: as told, or so that all take equally long."""
  number, lengths = len(works), pipe.lengths
  _check_number(pipe, layers, number)
  if lengths and len(lengths) != number:
    raise ValueError(
      f"pipeline.lengths={lengths!r}: must be empty or hold a number of layers, at "
      f"least 1, for each of the {number} cells of num_partitions="
      f"{pipe.num_partitions}"
    )
  if lengths:
    try:
      return partition.explicit(len(layers), lengths)
    except ValueError as error:
      raise ValueError(f"pipeline.lengths={lengths!r}: {error}") from error
  costs = {work: _costs(layers, work, pipe.remat) for work in set(works)}
  return partition.balance_each([costs[work] for work in works])


def _costs(layers: Sequence[LayerTime], work: _Work, remat: str) -> list[float]:
  """Gives what a micro-batch costs in each layer."""
  again = work.again + (remat == "layer")
  return [
    (1 + again) * layer.forward
    + (1 - work.split) * layer.both
    + work.split * (layer.input_gradient + layer.weight_gradient)
    for layer in layers
  ]


def _check_number(pipe: Params, layers: Sequence[LayerTime], number: int) -> None:
  if number > len(layers):
    each = pipe.stages_per_device
    times = f" times pipeline.stages_per_device={each}" if each else ""
    raise ValueError(
      f"pipeline.num_partitions={pipe.num_partitions}{times} with schedule "
      f"{pipe.schedule} makes {number} cells: must be at most the number of layers, "
      f"{len(layers)}"
    )


def _zero_bubble(pipe: Params, times: StageTimes) -> Schedule:
  """Makes the best schedule that is found for these times.

  A device keeps no more micro-batches from F to W, counted by stages whatever their
  size, than twice those of 1F1B. Transfers are taken to need no time: whatever the
  hardware, what is trained is what was planned.
  """
  stages = pipe.stages_per_device or 1
  try:
    return schedule_search.zero_bubble(
      times,
      pipe.num_micro_batches,
      memory_limit=2 * pipe.num_partitions * stages,
      stages_per_device=stages,
      remat=pipe.remat == "cell",
    )
  except schedule.SizeError as error:
    raise _in_params(pipe, error) from error


def _stage_times(
  layers: Sequence[LayerTime], cells: partition.Cells, remat: str, factor: float = 1.0
) -> StageTimes:
  """Adds up the layers of each stage, all but their updates `factor` times as long.

  With remat `layer`, a backward computes each layer again.
  """
  forward = [factor * sum(x.forward for x in layers[a:b]) for a, b in cells]
  inputs = [factor * sum(x.input_gradient for x in layers[a:b]) for a, b in cells]
  weights = [factor * sum(x.weight_gradient for x in layers[a:b]) for a, b in cells]
  both = [factor * sum(x.both for x in layers[a:b]) for a, b in cells]
  if remat == "layer":
    inputs = [a + b for a, b in zip(inputs, forward, strict=True)]
    both = [a + b for a, b in zip(both, forward, strict=True)]
  update = [sum(x.update for x in layers[a:b]) for a, b in cells]
  return StageTimes(forward, inputs, weights, update=update, backward=both)
