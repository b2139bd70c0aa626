"""A trial of a training: its first step in memory alone."""

from __future__ import annotations

import pathlib

from tfpipe.program.evaluate import means
from tfpipe.program.report import line, show
from tfpipe.program.run import Run
from tfpipe.program.saver import Saver


def dry_run(run: Run, folder: pathlib.Path, *, evaluates: bool) -> None:
  """Evaluates one batch and runs one step, if there are any; writes nothing.

  Args:
    run: what would be trained.
    folder: where it would be saved.
    evaluates: whether it would be evaluated.

  Raises:
    ValueError: there is no space for a checkpoint, or a layer, the learner or an input
      does not do what it should.
    FloatingPointError: the loss or a gradient is not finite.
  """
  if evaluates and run.eval_input is not None:
    batch = next(iter(run.eval_input.dataset()))
    show("eval of one batch: " + line(means(run.eval_function()(batch))))
  last = run.params.train.max_steps
  Saver(run, folder).check_space()
  if run.step >= last:
    show(f"nothing to train: step {run.step} is not below max_steps={last}")
    return
  batch = next(iter(run.input.dataset(start_step=run.step)), None)
  if batch is None:
    show(f"nothing to train: the training data ends after step {run.step}")
    return
  outputs = run.train_function()(batch)
  update = {name: value.numpy() for name, value in outputs["update"].items()}
  run.learner.check(update)
  if not outputs["finite"]:
    raise FloatingPointError(f"step {run.step}: its loss or a moment is not finite")
  values = means(outputs["metrics"])
  values["grad_norm"] = float(update["grad_norm"])
  show(line({"step": f"{run.step}/{last}", **values}))
  show("dry run: this step has been tried in memory; nothing was written")
