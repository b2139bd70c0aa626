"""What keeps a step from doing harm: errors, hangs and bad numbers get a place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from tfpipe.input.base import Input
from tfpipe.lazy import tf
from tfpipe.program.again import Again, Batch
from tfpipe.program.batches import first_planned
from tfpipe.program.calls import parts
from tfpipe.program.failure import BuildError, StepError, short
from tfpipe.program.fetch import Fetcher, next_batch
from tfpipe.program.places import Places, unfinished
from tfpipe.program.refusal import in_layer
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.program.watchdog import Watchdog


class Guard:
  """Watches the steps of a run. Use it as a context.

  Args:
    run: the run.
  """

  def __init__(self, run: Run) -> None:
    self._run = run
    self._places = Places(run)
    self._watchdog = Watchdog(run.params.train.step_timeout_secs)
    self._again = Again(run, self._places)
    self._window: list[tuple[int, Batch]] = []
    self._num_steps = self._num_evaluations = 0

  def __enter__(self) -> Guard:
    self._watchdog.__enter__()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    frames: TracebackType | None,
  ) -> None:
    self._watchdog.__exit__(kind, error, frames)

  def building(self) -> Any:
    """Traces the training step.

    Raises:
      BuildError: a layer's FProp has failed, or the loss does not depend on a weight.
    """
    return self._building("building the step", self._run.train_function)

  def building_evaluation(self) -> Any:
    """Traces evaluation.

    Raises:
      BuildError: the code of a layer has failed.
    """
    return self._building("building the evaluation", self._run.eval_function)

  def _building(self, what: str, make: Callable[[], Any]) -> Any:
    try:
      with self.doing(what):
        return make()
    except StepError:
      raise
    except Exception as error:
      raise BuildError(f"{what}: {short(error)}") from error

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """Names the layer, with its stage and line, whose code fails within.

    Args:
      what: is done, for the message.

    Raises:
      BuildError: the code of a layer has failed.
      StepError: an operation of TensorFlow has failed.
    """
    try:
      yield
    except Exception as error:
      if layer := self._places.of_note(error):
        raise BuildError(f"{what}: {in_layer(layer, error)}") from error
      if isinstance(error, tf.errors.OpError):
        raise StepError(f"{what}: {short(error)}") from error
      raise

  def batch(self, batches: Fetcher, what: str, source: Input) -> Any:
    """Gives the next mini-batch, None at the end of the data.

    Args:
      batches: of the input.
      what: waits for it.
      source: the input.

    Raises:
      GivenUp: a signal to stop came meanwhile.
      StepError: the input has failed.
    """
    return next_batch(batches, what, source, self._watchdog)

  def planned_batch(self, what: str, source: Input) -> Batch:
    """Gives the first mini-batch of the shape that plans are made for.

    Raises:
      StepError: the input has failed.
      ValueError: there is none.
    """
    return first_planned(source, what, self._watchdog)

  def evaluation(
    self, what: str, function: Callable[[Batch], Any], batch: Batch
  ) -> dict[str, tuple[float, float]]:
    """Evaluates a mini-batch; gives the sum and the weight of each metric.

    Raises:
      StepError: it has failed.
    """
    self._num_evaluations += 1
    try:
      with self._watchdog.limit(f"{what} runs", self._where_in_evaluation):
        pairs = function(batch).items()
        return {name: (float(total), float(weight)) for name, (total, weight) in pairs}
    except tf.errors.OpError as error:
      place, cause = self._places.of_error(str(error)), error
      if not place or isinstance(error, tf.errors.CancelledError):
        place, cause = self._failing_evaluation(batch) or (place or "a layer", error)
      raise StepError(f"{what}: {place}: {short(cause)}") from cause

  def step(self, step: int, function: Callable[[Batch], Any], batch: Batch) -> Any:
    """Runs a step, or those of a call, to its end.

    Args:
      step: number of the first.
      function: of the run.
      batch: what it is called with.

    Raises:
      StepError: it has failed.
    """
    self._num_steps += 1
    number = self._run.params.train.steps_per_call
    what = f"step {step}" if number == 1 else f"steps {step} to {step + number - 1}"
    try:
      with self._watchdog.limit(f"{what} run{'s' * (number == 1)}", self._where):
        outputs = function(batch)
        outputs["finite"].numpy()  # where a device is asynchronous, it waits here
        return outputs
    except tf.errors.OpError as error:
      place, cause = self._places.of_error(str(error)), error
      # What was cancelled has not failed: something else has.
      if not place or isinstance(error, tf.errors.CancelledError):
        found = map(self._failing, range(step, step + number), parts(batch, number))
        place, cause = next(filter(None, found), (place or "the step", error))
      raise StepError(f"{what}: {place}: {short(cause)}") from cause

  def check(self, step: int, batch: Batch, outputs: Mapping) -> None:
    """Stops at what must not be learned from, if the Params say so; or shows it.

    Args:
      step: number of the step.
      batch: its mini-batch.
      outputs: what it gave.

    Raises:
      FloatingPointError: a number is not finite, or the loss is a spike.
    """
    self._window.append((step, batch))
    learner = self._run.learner
    update = {name: value.numpy() for name, value in outputs["update"].items()}
    losses = outputs["micro_batch_losses"].numpy()
    bad = np.flatnonzero(~np.isfinite(losses)).tolist()
    finite = bool(outputs["finite"])
    where = f"step {step}"
    if bad:
      where += f": the loss of micro-batch {', '.join(map(str, bad))} is not finite"
    elif not finite:
      where += ": a batch norm's mean or variance is not finite"
    spike = self._spike(outputs)
    where += spike
    stops = self._run.params.train.on_loss_spike == "stop"
    first = ""
    # Of several skips in a row, the first tells as much as the others.
    new = update["consecutive_skips"] <= 1 or learner.params.nonfinite == "stop"
    if new and (not finite or update["nonfinite"].any()):
      first = self._first_bad(bad)
    behind = f"; {first}" if first else ""
    try:
      learner.check(update)
    except FloatingPointError as error:
      raise FloatingPointError(f"{where}: {error}{behind}") from error
    # An update that is not due yet would hide it, and a checkpoint keep it.
    if not finite and learner.params.nonfinite == "stop":
      raise FloatingPointError(f"{where}{behind}")
    if spike and stops:
      raise FloatingPointError(f"{where}: update not applied")
    if update["skipped"]:
      show(f"{where}: update skipped, {update['consecutive_skips']} in a row")
    elif spike:
      show(where)
    if first:
      show(first)
    if update["applied"] or update["skipped"]:
      self._window.clear()

  def _spike(self, outputs: Mapping) -> str:
    if "spike" not in outputs or not outputs["spike"]:
      return ""
    total, weight = outputs["metrics"]["loss"]
    factor = self._run.params.train.loss_spike
    return (
      f": the loss, {float(total / weight):.5g}, is more than train.loss_spike="
      f"{factor:g} x {float(outputs['median']):.5g}, the median before"
    )

  def _first_bad(self, bad: list[int]) -> str:
    """Says where the first bad number comes from; of this step if losses are bad."""
    # What only a gradient has may come from any mini-batch of the update.
    steps = self._window[-1:] if bad else self._window
    goes_on = self._run.learner.params.nonfinite == "skip"
    if goes_on and self._run.params.train.steps_per_call > 1:
      return "where it comes from is not known: later steps of its call have learned"
    # A checkpoint may hold sums of steps before it.
    due = self._run.learner.params.accumulate_steps
    try:
      return self._again.first_bad(steps, bad, are_all=bool(bad) or len(steps) == due)
    except tf.errors.OpError as error:  # e.g. no memory left for it
      return f"where it comes from could not be looked for: {short(error)}"

  def _failing(self, step: int, batch: Batch) -> tuple[str, tf.errors.OpError] | None:
    try:
      return self._again.failing(step, batch)
    except tf.errors.OpError:
      return None

  def _failing_evaluation(self, batch: Batch) -> tuple[str, tf.errors.OpError] | None:
    try:
      self._run.eval_on_host(batch)
    except tf.errors.OpError as error:
      place = self._places.of_error(str(error))
      return (place, error) if place else None
    return None

  def _where(self) -> str:
    run = self._run
    if run.marks is None:
      return "one program for all devices does not tell which action it is at"
    counts = run.marks.read()
    return unfinished(run.plan.schedule, self._places, counts, self._num_steps)

  def _where_in_evaluation(self) -> str:
    run = self._run
    assert run.eval_marks is not None
    counts, number = run.eval_marks.read(), self._num_evaluations
    return unfinished(run.pipeline.eval_schedule, self._places, counts, number)
