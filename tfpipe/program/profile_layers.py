"""Times every layer of a network on a device: forward, both gradients, update.

Layers are timed where they stand in a training step: as stages of a pipeline on one
device, which measures its actions. There they find caches and memory as they do in
training; a layer that is called over and over does not. Stages that work at the same
time share more than links: the cores of a host its memory and last cache. So as many
copies of the network are timed at once as there are devices.

What a layer costs in a pipeline is then measured with the network cut into as many
stages as there are devices, while the input makes its next batch, and the times of each
stage's layers are scaled to add up to the stage's. That is done in orders that keep few
micro-batches in flight; one that keeps all of them tells how much longer it takes then.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tfpipe import partition
from tfpipe.input.base import Input
from tfpipe.layer_times import Crowding, LayerTime, LayerTimes
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.micro_batch import micro_batch_size
from tfpipe.pipeline.pipeline import Pipeline, declared_weights
from tfpipe.program.batches import first_planned
from tfpipe.program.fetch import Fetcher, next_batch
from tfpipe.program.run import tensor_specs
from tfpipe.program.watchdog import Watchdog
from tfpipe.schedule import gpipe, in_flight, one_f_one_b, zero_bubble
from tfpipe.schedule.action import Action
from tfpipe.schedule.generate import finish
from tfpipe.schedule.schedule import Schedule

ROUNDS = 3
"""Rounds over all that is measured, so that a slow minute of the machine meets all."""
STEPS = 5
"""Steps of a round; the first of them warms up."""


@dataclasses.dataclass(frozen=True)
class Profile:
  """What was measured, for one micro-batch.

  Attributes:
    times: of each layer, scaled stage by stage to add up to `whole`.
    alone: seconds of F, B, W and BW: the sums over the layers as stages.
    whole: the same of the network cut into a stage for each device.
  """

  times: LayerTimes
  alone: tuple[float, ...]
  whole: tuple[float, ...]


Secs: TypeAlias = "dict[tuple[str, int], float]"
"""Seconds by kind of action and stage."""


class Measured(NamedTuple):
  """Medians over steps and copies.

  Attributes:
    secs: mean over the micro-batches of a step.
    updates: seconds from the last action to the end of each device's update.
  """

  secs: Secs
  updates: tuple[float, ...]


_KINDS = ("F", "B", "W", "BW")


def profile(params: Params, devices: Sequence[str]) -> Profile:
  """Times the layers of a run.

  With several micro-batches, the weight gradient includes its addition to the sum. The
  forward is one that keeps all that the gradients read, whatever `pipeline.remat` is.

  Args:
    params: of the run; of `pipeline`, only `num_micro_batches`, `intra_op_threads`,
      `compute_dtype` and `xla` matter.
    devices: full names; on each a copy of the network is timed, all at once.

  Raises:
    ValueError, LookupError: the Params are not allowed, or the data is not there.
    StepError: the input has failed.
  """
  placement.keep_bits()  # as a run does: other options make other graphs
  source: Input = params.input.Instantiate()
  limit = params.train.step_timeout_secs
  with Watchdog(limit) as watchdog:
    batch = first_planned(source, "profiling", watchdog)
  names = [layer.name for layer in params.task.Instantiate().Layers()]
  number = params.pipeline.num_micro_batches
  each = [(i, i + 1) for i in range(len(names))]
  copies = [
    [
      _Subject(params, source, [device], each, schedule(len(each), number, splits=s))
      for device in devices
    ]
    for s in (True, False)
  ]
  apart, apart_at_once = measure(copies, source, batch, limit)
  stages = apart.secs | apart_at_once.secs
  weights = copies[0][0].shares()
  del copies  # a run has one network in memory
  loads = [sum(stages[kind, i] for kind in ("F", "BW")) for i in range(len(names))]
  cells = partition.balance(loads, len(devices))
  orders = [
    made(len(devices), number)
    for made in (zero_bubble.h1, gpipe.schedule, one_f_one_b.schedule)
  ]
  cut = [[_Subject(params, source, devices, cells, order)] for order in orders]
  found = measure(cut, source, batch, limit)
  split, many, few = (one.secs for one in found)
  whole = _means([split, few])
  shares = [[1.0], [1.0], *[own[0].stage_shares() for own in cut]]
  update, end = update_and_end(shares, [apart, apart_at_once, *found])
  scaled = scale(stages, whole, cells)
  times = []
  for i, (name, share) in enumerate(zip(names, weights, strict=True)):
    f, b, w, both = (scaled[kind, i] for kind in _KINDS)
    times.append(LayerTime(name, f, b, w, share * update, both))
  rows = micro_batch_size(source.params.batch_size, number)
  return Profile(
    LayerTimes(
      describe(devices), rows, tuple(times), end, crowding(orders[1:], [many, few])
    ),
    _sums(stages),
    _sums(whole),
  )


def crowding(orders: Sequence[Schedule], found: Sequence[Secs]) -> Crowding:
  """Tells how much longer actions take with many micro-batches in flight.

  Args:
    orders: a schedule that keeps many, and one of the same actions that keeps few.
    found: seconds of their actions.
  """
  many, few = (float(statistics.mean(in_flight(order).kept)) for order in orders)
  if many == few:  # one micro-batch: what differs is chance
    return Crowding(few, many)
  return Crowding(few, many, sum(found[0].values()) / sum(found[1].values()))


def _means(found: Sequence[Secs]) -> Secs:
  """Gives the mean of each kind of action and stage, over those that have it."""
  keys = dict.fromkeys(key for secs in found for key in secs)
  return {k: statistics.mean(secs[k] for secs in found if k in secs) for k in keys}


def scale(layers: Secs, stages: Secs, cells: partition.Cells) -> Secs:
  """Gives the layers' times, those of each cell adding up to the stage's times.

  Args:
    layers: seconds by kind of action and layer.
    stages: seconds by kind of action and stage.
    cells: half-open layer range of each stage.
  """
  scaled = {}
  for stage, (start, end) in enumerate(cells):
    for kind in _KINDS:
      alone = sum(layers[kind, i] for i in range(start, end))
      factor = stages[kind, stage] / alone if alone else 1.0
      for i in range(start, end):
        scaled[kind, i] = factor * layers[kind, i]
  return scaled


def _sums(secs: Secs) -> tuple[float, ...]:
  """Adds up the seconds of each kind of action."""
  return tuple(sum(own for (kind, _), own in secs.items() if kind == k) for k in _KINDS)


def describe(devices: Sequence[str]) -> str:
  """Says what the devices are: their names, their make if known, and their threads."""
  name = ", ".join(device.rpartition("device:")[2] for device in devices)
  if not name.startswith("CPU"):
    physical = next(iter(tf.config.list_physical_devices(name.partition(":")[0])))
    make = tf.config.experimental.get_device_details(physical).get("device_name")
    return f"{name}, {make}" if make else name
  threads = tf.config.threading.get_intra_op_parallelism_threads()
  each = " each" if len(devices) > 1 else ""
  return f"{name}, {threads or 'all'} thread{'' if threads == 1 else 's'}{each}"


class _Subject:
  """A network on some devices, cut into stages.

  Attributes:
    actions: in order, what a step reports the times of.
  """

  def __init__(
    self,
    params: Params,
    source: Input,
    devices: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    schedule: Schedule,
  ) -> None:
    task = params.task.Instantiate()
    self._layers = [layer.Instantiate() for layer in task.Layers()]
    self._ranges = ranges
    pipe = params.pipeline
    self._pipeline = Pipeline(
      self._layers,
      ranges,
      schedule,
      devices,
      input_fields=task.INPUT_FIELDS,
      seed=params.train.seed,
      execution=Execution(serial=pipe.intra_op_threads == 1, xla=pipe.xla),
      compute_dtype=pipe.compute_dtype,
    )
    learner = params.task.learner.Instantiate()
    learner.create_state(
      self._pipeline.trainable(),
      self._pipeline.l2_names(),
      scales_loss=self._pipeline.scales_loss,
    )
    self._function = self._pipeline.train_function(
      learner, tensor_specs(source), timed=True
    )
    self.actions = self._pipeline.timed_actions()

  def step(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Trains on a mini-batch; gives start and end of each action, and the ends."""
    outputs = self._function(batch)
    return outputs["times"].numpy(), outputs["ends"].numpy()

  def stage_shares(self) -> list[float]:
    """Gives each stage's part of the trained weights."""
    shares = self.shares()
    return [sum(shares[start:end]) for start, end in self._ranges]

  def shares(self) -> list[float]:
    """Gives each layer's part of the trained weights."""
    sizes = [
      sum(math.prod(w.shape) for w in declared_weights([layer]).values() if w.trainable)
      for layer in self._layers
    ]
    return [size / sum(sizes) for size in sizes]


def schedule(num_stages: int, num_micro_batches: int, *, splits: bool) -> Schedule:
  """Gives the order on one device: each micro-batch forward and back, then the next.

  Args:
    num_stages: all on device 0.
    num_micro_batches: of a step.
    splits: whether the gradient of the weights is an action of its own.
  """
  stages = range(num_stages)
  actions = []
  for m in range(num_micro_batches):
    actions += [Action("F", stage, m) for stage in stages]
    for kind in ("B", "W") if splits else ("BW",):
      actions += [Action(kind, stage, m) for stage in reversed(stages)]
  placement = [[0] * num_stages]
  return finish("profiled", num_micro_batches, placement, [actions], remat=False)


def measure(
  subjects: Sequence[Sequence[_Subject]], source: Input, batch: Any, limit: float = 0.0
) -> list[Measured]:
  """Runs steps of each subject, its copies at the same time.

  Each copy's input makes batches beside, as in training; all steps are on `batch`.

  Args:
    subjects: copies of each.
    source: the input.
    batch: a mini-batch of it.
    limit: seconds that a batch or a step may take; 0: any.

  Raises:
    StepError: the input has failed.
  """

  def steps(subject: _Subject) -> list[tuple[np.ndarray, np.ndarray]]:
    found = []
    with (
      Watchdog(limit) as watchdog,
      Fetcher(iter(source.dataset().repeat())) as batches,
    ):
      for _ in range(STEPS):
        next_batch(batches, "profiling", source, watchdog)
        with watchdog.limit("profiling: a step runs"):
          found.append(subject.step(batch))
    return found[1:]

  every: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in subjects]
  for _ in range(ROUNDS):
    for copies, found in zip(subjects, every, strict=True):
      with ThreadPoolExecutor(len(copies)) as pool:
        for own in pool.map(steps, copies):
          found += own
  return [
    medians(copies[0].actions, found)
    for copies, found in zip(subjects, every, strict=True)
  ]


def medians(
  actions: Sequence[Action], steps: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Measured:
  """Sums up what steps measured.

  Within a step the mean counts, for a step takes as long as the sum of its actions.

  Args:
    actions: in order.
    steps: of each [actions, 2] seconds at which they started and ended, and [devices]
      at which the updates had ended.
  """
  places: dict[tuple[str, int], list[int]] = {}
  for place, action in enumerate(actions):
    places.setdefault((action.kind, action.stage), []).append(place)
  taken = np.stack([times[:, 1] - times[:, 0] for times, _ in steps])
  updates = np.median([ends - np.max(times) for times, ends in steps], axis=0)
  return Measured(
    {key: float(np.median(taken[:, own].mean(1))) for key, own in places.items()},
    tuple(np.maximum(0.0, updates).tolist()),
  )


def update_and_end(
  shares: Sequence[Sequence[float]], found: Sequence[Measured]
) -> tuple[float, float]:
  """Tells the update of all weights from what a step's end takes whatever is updated.

  Args:
    shares: of the weights, that the devices have, for each that was measured.
    found: what was measured.

  Returns:
    seconds of the update of all weights on one device, and of the end besides: the line
    with the least squares, of those that rise and are above 0.
  """
  x = np.concatenate(shares)
  y = np.concatenate([one.updates for one in found])
  apart = x - np.mean(x)
  if not apart.any():  # nothing tells what else there is
    return float(np.mean(y) / x[0]), 0.0
  update = max(0.0, float(apart @ y / (apart @ apart)))
  end = float(np.mean(y) - update * np.mean(x))
  return (update, end) if end > 0 else (float(x @ y / (x @ x)), 0.0)
