"""Times every layer of a network on a device: forward, both gradients, update.

Layers are timed where they stand in a training step: as stages of a pipeline on one
device, which measures its actions. There they find caches and memory as they do in
training; a layer that is called over and over does not. What a stage costs besides its
layer is taken out: the same is measured of all layers as one stage, and each layer's
times are scaled to add up to those.

Stages that work at the same time share more than links: the cores of a host its memory
and last cache. So as many copies of the network are timed at once as there are devices.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tfpipe.input.base import Input
from tfpipe.layer_times import LayerTime, LayerTimes
from tfpipe.lazy import tf
from tfpipe.optimizers.state import STEP
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.micro_batch import micro_batch_size
from tfpipe.pipeline.pipeline import Pipeline, declared_weights
from tfpipe.program.batches import first_planned
from tfpipe.program.run import tensor_specs
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
    times: of each layer, scaled to add up to `whole`.
    alone: seconds of F, B, W and BW: the sums over the layers as stages.
    whole: the same of all layers as one stage.
  """

  times: LayerTimes
  alone: tuple[float, ...]
  whole: tuple[float, ...]


class Measured(NamedTuple):
  """Medians over steps, micro-batches and copies.

  Attributes:
    secs: of an action, by its kind and stage.
    end: seconds from the last action to the end of the step.
  """

  secs: dict[tuple[str, int], float]
  end: float


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
  """
  placement.keep_bits()  # as a run does: other options make other graphs
  source: Input = params.input.Instantiate()
  batch = first_planned(source)
  layers = params.task.Instantiate().Layers()
  ranges = [(i, i + 1) for i in range(len(layers))]
  subjects = [
    [_Subject(params, source, device, own, splits=splits) for device in devices]
    for own in (ranges, [(0, len(layers))])
    for splits in (True, False)
  ]
  apart, apart_at_once, one, one_at_once = measure(subjects, batch)
  stages = apart.secs | apart_at_once.secs
  whole = one.secs | one_at_once.secs
  update = min(one.end, update_secs(subjects[2]))
  names = [layer.name for layer in layers]
  alone = [sum(stages[kind, i] for i in range(len(names))) for kind in _KINDS]
  factors = {
    kind: whole[kind, 0] / own if own else 1.0
    for kind, own in zip(_KINDS, alone, strict=True)
  }
  times = []
  for i, (name, share) in enumerate(zip(names, subjects[0][0].shares(), strict=True)):
    f, b, w, both = (factors[kind] * stages[kind, i] for kind in _KINDS)
    times.append(LayerTime(name, f, b, w, share * update, both))
  rows = micro_batch_size(source.params.batch_size, params.pipeline.num_micro_batches)
  return Profile(
    LayerTimes(describe(devices), rows, tuple(times), one.end - update),
    tuple(alone),
    tuple(whole[kind, 0] for kind in _KINDS),
  )


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
  """A network on a device, cut into stages that all run there.

  Attributes:
    actions: in order, what a step reports the times of.
  """

  def __init__(
    self,
    params: Params,
    source: Input,
    device: str,
    ranges: Sequence[tuple[int, int]],
    *,
    splits: bool,
  ) -> None:
    task = params.task.Instantiate()
    self._layers = [layer.Instantiate() for layer in task.Layers()]
    pipe = params.pipeline
    self._pipeline = Pipeline(
      self._layers,
      ranges,
      schedule(len(ranges), pipe.num_micro_batches, splits=splits),
      [device],
      input_fields=task.INPUT_FIELDS,
      seed=params.train.seed,
      execution=Execution(serial=pipe.intra_op_threads == 1, xla=pipe.xla),
      compute_dtype=pipe.compute_dtype,
    )
    self._device = device
    self._learner = params.task.learner.Instantiate()
    self._learner.create_state(
      self._pipeline.trainable(),
      self._pipeline.l2_names(),
      scales_loss=self._pipeline.scales_loss,
    )
    self._function = self._pipeline.train_function(
      self._learner, tensor_specs(source), timed=True
    )
    self.actions = self._pipeline.timed_actions()

  def step(self, batch: Any) -> tuple[np.ndarray, float]:
    """Trains on a mini-batch; gives start and end of each action, and the end."""
    outputs = self._function(batch)
    return outputs["times"].numpy(), float(outputs["end"])

  def update_function(self) -> Any:
    """Gives a function that only updates the weights, with some gradients."""
    with tf.device(self._device):
      gradients = {
        name: tf.fill(weight.shape, 1e-3)
        for name, weight in self._pipeline.trainable().items()
      }

    def update() -> tf.Tensor:
      self._learner.apply(gradients, tf.ones([]))
      return self._learner.state()[STEP].read_value()

    return tf.function(update, autograph=False).get_concrete_function()

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


def measure(subjects: Sequence[Sequence[_Subject]], batch: Any) -> list[Measured]:
  """Runs steps of each subject, its copies at the same time."""
  steps: list[list[tuple[np.ndarray, float]]] = [[] for _ in subjects]
  for _ in range(ROUNDS):
    for copies, found in zip(subjects, steps, strict=True):
      with ThreadPoolExecutor(len(copies)) as pool:
        for own in pool.map(lambda s: [s.step(batch) for _ in range(STEPS)], copies):
          found += own[1:]
  return [
    medians(copies[0].actions, found)
    for copies, found in zip(subjects, steps, strict=True)
  ]


def medians(
  actions: Sequence[Action], steps: Sequence[tuple[np.ndarray, float]]
) -> Measured:
  """Sums up what steps measured.

  Args:
    actions: in order.
    steps: of each [actions, 2] seconds at which they started and ended, and the end.
  """
  last = max(action.micro_batch for action in actions)
  secs: dict[tuple[str, int], list[float]] = {}
  for times, _ in steps:
    for action, (start, end) in zip(actions, times, strict=True):
      # The first micro-batch has no sum to add its gradients to.
      if action.micro_batch or not last or action.kind in ("F", "B"):
        secs.setdefault((action.kind, action.stage), []).append(float(end - start))
  ends = [end - float(np.max(times)) for times, end in steps]
  return Measured(
    {key: statistics.median(own) for key, own in secs.items()},
    max(0.0, statistics.median(ends)),
  )


def update_secs(copies: Sequence[_Subject]) -> float:
  """Measures the update of all weights, of all copies at the same time."""

  def secs(function: Any) -> list[float]:
    found = []
    for _ in range(ROUNDS * STEPS):
      start = time.perf_counter()
      function().numpy()
      found.append(time.perf_counter() - start)
    return found[1:]

  functions = [subject.update_function() for subject in copies]
  with ThreadPoolExecutor(len(functions)) as pool:
    return statistics.median(x for own in pool.map(secs, functions) for x in own)
