"""A trial of a training: its first step in memory alone."""

from __future__ import annotations

import pathlib

from tfpipe.program import calls
from tfpipe.program.evaluate import means
from tfpipe.program.fetch import Fetcher
from tfpipe.program.guard import Guard
from tfpipe.program.report import line, show
from tfpipe.program.run import Run
from tfpipe.program.saver import Saver


def dry_run(run: Run, folder: pathlib.Path | None, *, evaluates: bool) -> None:
  """Evaluates one batch and runs one step, guarded as in training; writes nothing.

  Args:
    run: what would be trained.
    folder: where it would be saved; None: that is not known yet.
    evaluates: whether it would be evaluated.

  Raises:
    ValueError: there is no space for a checkpoint, or a layer, the learner or an input
      does not do what it should.
    FloatingPointError: the loss or a gradient is not finite, and the Params say stop.
    StepError: a layer or the input has failed.
  """
  with Guard(run) as guard:
    if evaluates and run.eval_input is not None:
      _evaluate(run, guard)
    _step(run, guard, folder)


def _evaluate(run: Run, guard: Guard) -> None:
  assert run.eval_input is not None
  function = guard.building_evaluation()
  what = "evaluating one batch"
  with Fetcher(iter(run.eval_input.dataset())) as batches:
    batch = guard.batch(batches, what, run.eval_input)
  show("eval of one batch: " + line(means(guard.evaluation(what, function, batch))))


def _step(run: Run, guard: Guard, folder: pathlib.Path | None) -> None:
  last = run.params.train.max_steps
  if folder:
    Saver(run, folder).check_space()
  if run.step >= last:
    show(f"nothing to train: step {run.step} is not below max_steps={last}")
    return
  step, function = run.step + 1, guard.building()
  with Fetcher(iter(run.batches())) as batches:
    batch = guard.batch(batches, f"step {step}", run.input)
  if batch is None:
    show(f"nothing to train: the training data ends after step {run.step}")
    return
  number = run.params.train.steps_per_call
  (batch, *_), (outputs, *_) = (
    calls.parts(values, number) for values in (batch, guard.step(step, function, batch))
  )
  guard.check(step, batch, outputs)
  values = means(outputs["metrics"])
  values["grad_norm"] = float(outputs["update"]["grad_norm"])
  show(line({"step": f"{step}/{last}", **values}))
  show("dry run: this step has been tried in memory; nothing was written")
