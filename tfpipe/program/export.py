"""Export: a SavedModel of the network that needs no tfpipe, checked before it is seen.

It takes any number of examples on whatever device it is loaded, and gives what the last
layer's `Predict` says. Weights are those that evaluation uses: the moving averages if
there are any.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpipe.input.base import Input
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline import micro_batch, mixed_precision
from tfpipe.pipeline.predictor import Predictor, check_predicts
from tfpipe.program import quiet, stop
from tfpipe.program.guard import Guard
from tfpipe.program.run import Run, tensor_specs

_TOLERANCE = 1e-5
"""Relative: sums over micro-batches are taken in another order than in a pipeline."""


def check(params: Params) -> None:
  """Refuses a network that predicts nothing; touches no device.

  Raises:
    ValueError: naming its last layer and what that lacks.
  """
  check_predicts(params.task.Instantiate().Layers()[-1].Instantiate())


def predictor(run: Run, rows: int | None = None) -> tuple[Predictor, dict]:
  """Makes the network of a run on one device, with copies of its weights.

  Args:
    run: has its weights.
    rows: of a call; None for those of a micro-batch.

  Returns:
    the network, and the copies: global name → variable.
  """
  task = run.params.task.Instantiate()
  layers = [layer.Instantiate() for layer in task.Layers()]
  mixed_precision.prepare(layers, run.params.pipeline.compute_dtype, "")
  values = {**run.pipeline.weights, **run.averages()}
  with tf.device("CPU:0"):
    weights = {
      name: tf.Variable(tf.identity(value), trainable=False, name=name)
      for name, value in values.items()
    }
  source = source_of(run)
  rows = rows or source.params.batch_size // run.params.pipeline.num_micro_batches
  specs = {
    name: tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype, name=name)
    for name, spec in tensor_specs(source).items()
  }
  return Predictor(layers, task.INPUT_FIELDS, specs, weights), weights


def source_of(run: Run) -> Input:
  """Gives the input that says what examples look like."""
  return run.eval_input or run.input


def export(run: Run, folder: pathlib.Path) -> list[str]:
  """Writes the SavedModel of a run's weights, `folder/export/<step>`.

  Returns:
    lines that say what it is.

  Raises:
    ValueError: there is one already, it cannot be written, or what was saved does not
      compute what evaluation does.
    StepError: a layer or the input has failed.
  """
  path = folder / "export" / str(run.step)
  if path.exists():
    raise ValueError(f"{path} is there already; remove it to export step {run.step}")
  what = f"exporting step {run.step}"
  with Guard(run) as guard, guard.doing(what):
    network, weights = predictor(run)
    batch = guard.planned_batch(what, source_of(run))
    loss = _check_metrics(run, network, batch, guard)
    serve = _function(network, batch)
  fed = {name: batch[name] for name in network.fields}
  with stop.held():
    _publish(path, serve, weights, fed)
    stop.at(f"exporting; {path} is complete")
  given = ", ".join(_text(name, fed[name]) for name in fed)
  made = ", ".join(_text(*item) for item in serve.structured_outputs.items())
  return [
    f"exported {path}: {given} -> {made}",
    f"checked on {len(next(iter(batch.values())))} examples: loss {loss:.5g}, as in "
    "evaluation; the saved file gives the same outputs",
  ]


def _publish(
  path: pathlib.Path,
  serve: Any,
  weights: Mapping[str, tf.Variable],
  fed: Mapping[str, tf.Tensor],
) -> None:
  """Writes the SavedModel aside, and renames it when it has been checked."""
  aside = path.with_name(f"{path.name}.partial")
  shutil.rmtree(aside, ignore_errors=True)
  try:
    _write(serve, weights, aside)
    _check_saved(aside, fed, serve(*fed.values()))
  except ValueError:
    shutil.rmtree(aside, ignore_errors=True)
    raise
  except tf.errors.OpError as error:  # as TensorFlow says what a disk does
    shutil.rmtree(aside, ignore_errors=True)
    raise ValueError(f"{aside} could not be written: {error}") from error
  aside.rename(path)


def _function(network: Predictor, batch: Mapping[str, tf.Tensor]) -> Any:
  """Traces the predictions for any number of examples."""

  def serve(*values: tf.Tensor) -> dict[str, tf.Tensor]:
    return network.any_rows(dict(zip(network.fields, values, strict=True)))

  specs = [
    tf.TensorSpec([None, *batch[name].shape[1:]], batch[name].dtype, name=name)
    for name in network.fields
  ]
  return tf.function(serve, autograph=False).get_concrete_function(*specs)


def _write(serve: Any, weights: Mapping[str, tf.Variable], path: pathlib.Path) -> None:
  module = tf.Module()
  used = {id(variable) for variable in serve.variables}
  module.weights = {n: v for n, v in weights.items() if id(v) in used}  # pyright: ignore[reportAttributeAccessIssue]
  with quiet.notes():  # names of parts of the graph, and the like
    tf.saved_model.save(module, str(path), signatures=serve)


def _check_metrics(
  run: Run, network: Predictor, batch: Mapping[str, tf.Tensor], guard: Guard
) -> float:
  """Compares the network with evaluation on one batch, and gives the loss."""
  what = f"evaluating step {run.step}, batch 1"
  evaluated = guard.evaluation(what, guard.building_evaluation(), batch)
  number = run.params.pipeline.num_micro_batches
  metrics = tf.function(network.metrics, autograph=False)
  parts = [metrics(part) for part in micro_batch.split(dict(batch), number)]
  for name, expected in evaluated.items():
    sums = np.sum([[float(value) for value in part[name]] for part in parts], axis=0)
    if not np.allclose(sums, expected, _TOLERANCE, _TOLERANCE):
      raise ValueError(
        f"the network to be exported gives {name}={sums.tolist()} (sum, weight) on the "
        f"first batch, evaluation {list(expected)}"
      )
  total, weight = evaluated["loss"]
  return total / weight if weight else float("nan")


def _check_saved(
  path: pathlib.Path,
  batch: Mapping[str, tf.Tensor],
  expected: Mapping[str, tf.Tensor],
) -> None:
  """Compares what is loaded with what was saved."""
  loaded: Any = tf.saved_model.load(str(path))
  found = loaded.signatures["serving_default"](**batch)
  for name, values in expected.items():
    if not np.allclose(found[name], values, _TOLERANCE, _TOLERANCE):
      raise ValueError(f"{path}: {name} of the saved file is not what was exported")


def _text(name: str, tensor: tf.Tensor) -> str:
  rest = "".join(f", {size}" for size in tensor.shape[1:])
  return f"{name} {tensor.dtype.name} [n{rest}]"
