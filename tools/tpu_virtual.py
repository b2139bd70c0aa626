"""Runs the program made for TPU cores on logical CPUs, and the same on one device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfpipe import schedule
from tfpipe.lazy import tf
from tfpipe.pipeline import placement
from tfpipe.pipeline.pipeline import Pipeline
from tfpipe.spmd.virtual import VirtualDevices
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
  stages = subject.params.pipeline.num_partitions
  devices = placement.resolve("cpu", max(stages, 2))[:stages]
  batch = subject.batch()
  program = subject.program()
  virtual = VirtualDevices(program, devices)
  outputs = virtual.step([batch])
  found = Findings()
  found.lines.append(
    f"one step of the program on {stages} virtual CPU devices, and on one device"
  )
  gradients, scalars, state = _one_device(subject, devices[0], batch)
  report = outputs[0]["update"]
  own_scalars = {
    "micro-batch losses": outputs[0]["micro_batch_losses"],
    **{name: report[name] for name in _REPORTED},
  }
  _compare(found, "losses, norm and rate", own_scalars, scalars, MARGIN)
  own = virtual.named("weights", [output["gradients"] for output in outputs])
  _compare(found, "gradients", own, gradients, MARGIN)
  for layout, name in (
    ("weights", "new weights"),
    ("fixed", "moving statistics"),
    ("slots", "slots and averages"),
  ):
    values = virtual.values(layout)
    if values:
      _compare(found, name, values, {n: state[n] for n in values}, STATE_MARGIN)
  return found


def _one_device(
  subject: Subject, device: str, batch: _Arrays
) -> tuple[_Arrays, _Arrays, _Arrays]:
  """Trains on a mini-batch as the trainer does with one partition.

  Returns:
    gradients of the sum of the loss; losses and what the update reports; the state
    then.
  """
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
  fields = {name: tf.constant(field) for name, field in batch.items()}
  found = pipeline.gradient_function(subject.specs())(fields)
  report = pipeline.train_function(learner, subject.specs())(fields)["update"]
  variables = {**pipeline.weights, **learner.state()}
  return (
    {name: value.numpy() for name, value in found["gradient_sums"].items()},
    {
      "micro-batch losses": found["micro_batch_losses"].numpy(),
      **{name: report[name].numpy() for name in _REPORTED},
    },
    {name: variable.numpy() for name, variable in variables.items()},
  )


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
