"""Runs the program made for TPU cores on logical CPUs, and the same on one device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfpipe import schedule
from tfpipe.lazy import tf
from tfpipe.optimizers.learner import Learner
from tfpipe.pipeline import placement
from tfpipe.pipeline.pipeline import Pipeline
from tfpipe.spmd import strategies
from tfpipe.spmd.devices import Devices
from tfpipe.spmd.feed import Feeder
from tfpipe.spmd.program import STEP
from tools.tpu_subject import Findings, Subject

MARGIN = 1e-6
"""Largest difference of losses and gradients, of the largest number of each array."""
STATE_MARGIN = 1e-5
"""The same of weights, slots, averages and moving statistics after the update."""

_REPORTED = ("weight", "grad_norm", "clip_factor", "learning_rate")
"""Numbers of the update that are compared: Adam, and clipping, hide a wrong scale."""

_Arrays = Mapping[str, np.ndarray]


def check(subject: Subject) -> Findings:
  """Compares one training step with that of the trainer on one device."""
  placement.keep_bits()
  batch = subject.batch()
  program = subject.program()
  number, stages = program.num_replicas, program.network.sizes.stages
  names = placement.resolve("cpu", max(number, 2))[:number]
  strategy, exchanges = strategies.virtual(names)
  devices = Devices(program, strategy, exchanges)
  feeder = Feeder(strategy, program.network.batch, stages)
  pipeline, learner = _one_device(subject, names[0])
  variables = {
    **{f"weights/{name}": v for name, v in pipeline.weights.items()},
    **learner.state(),
    STEP: pipeline.step,
  }
  devices.load({name: variable.numpy() for name, variable in variables.items()})
  found = Findings()
  found.lines.append(
    f"one step of the program on {number} virtual CPU devices, and on one device"
  )
  fields = {name: tf.constant(field) for name, field in batch.items()}
  expected = pipeline.gradient_function(subject.specs())(fields)
  report = pipeline.train_function(learner, subject.specs())(fields)["update"]
  outputs = devices.everywhere(feeder.one(batch))
  losses = "micro_batch_losses"
  own, other = (
    {losses: given[losses].numpy(), **{n: update[n].numpy() for n in _REPORTED}}
    for given, update in ((outputs[0], outputs[0]["update"]), (expected, report))
  )
  _compare(found, "losses, norm and rate", own, other, MARGIN)
  vectors = [output["gradients"].numpy() for output in outputs]
  gradients = expected["gradient_sums"].items()
  _compare(
    found,
    "gradients",
    program.unpack("weights", vectors),
    {f"weights/{name}": value.numpy() for name, value in gradients},
    MARGIN,
  )
  _compare_states(
    found, devices.entries(), {name: v.numpy() for name, v in variables.items()}
  )
  return found


def _compare_states(found: Findings, state: _Arrays, expected: _Arrays) -> None:
  """Notes how all entries of a checkpoint differ, by kind."""
  kinds = {
    "new weights and moving statistics": ("weights/",),
    "slots and averages": ("slots/", "ema/"),
    "sums of several calls": ("accumulators/",),
    "counters": ("step", "learner/"),
  }
  for kind, prefixes in kinds.items():
    own, other = (
      {name: value for name, value in each.items() if name.startswith(prefixes)}
      for each in (state, expected)
    )
    if own or other:
      _compare(found, kind, own, other, STATE_MARGIN)


def _one_device(subject: Subject, device: str) -> tuple[Pipeline, Learner]:
  """Makes what trains with one partition."""
  params, task = subject.params, subject.params.task.Instantiate()
  layers = [layer.Instantiate() for layer in task.Layers()]
  pipeline = Pipeline(
    layers,
    [(0, len(layers))],
    schedule.make("gpipe", 1, params.pipeline.num_micro_batches),
    [device],
    input_fields=task.INPUT_FIELDS,
    seed=params.train.seed,
    compute_dtype=params.pipeline.compute_dtype,
  )
  learner = params.task.learner.Instantiate()
  learner.create_state(pipeline.trainable(), pipeline.l2_names())
  return pipeline, learner


def _compare(
  found: Findings, what: str, values: _Arrays, expected: _Arrays, margin: float
) -> None:
  """Notes the largest difference of some arrays, relative to the largest number."""
  if values.keys() != expected.keys():
    found.expect(False, f"{what}: not of the same arrays")
    return
  worst, name = max(
    ((difference(values[name], expected[name]), name) for name in values),
    key=lambda pair: (not pair[0] <= margin, pair[0]),
  )
  found.expect(
    worst <= margin,
    f"{what}: {len(values)}, largest difference {worst:.1e} of {name}; at most "
    f"{margin:.0e}",
  )


def difference(value: np.ndarray, expected: np.ndarray) -> float:
  """Gives the largest difference, relative to the largest number that is expected.

  Where 0 is expected it is the largest number itself; NaN if there is one.
  """
  scale = float(np.abs(expected).max(initial=0.0)) or 1.0
  return float(np.abs(value - expected).max(initial=0.0)) / scale
