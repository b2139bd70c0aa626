"""The training loop."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tfpipe.program import calls, metrics_cut, run_folder, run_page
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program import stop as stop_lib
from tfpipe.program.evaluate import evaluate, means
from tfpipe.program.fetch import Fetcher, GivenUp
from tfpipe.program.guard import Guard
from tfpipe.program.metrics_file import MetricsFile
from tfpipe.program.monitor import Monitor
from tfpipe.program.profile import Profiler, Window
from tfpipe.program.progress_line import ProgressLine
from tfpipe.program.report import (
  Progress,
  differences,
  indent,
  line,
  show,
)
from tfpipe.program.run import Run
from tfpipe.program.saver import Saver
from tfpipe.program.stop import StopSignal


def restore_newest(run: Run, folder: pathlib.Path, *, trains: bool = True) -> bool:
  """Continues from the newest complete checkpoint, if there is one.

  Args:
    run: takes it over.
    folder: of the checkpoints.
    trains: whether it is for training; else what concerns that alone is not shown.

  Returns:
    whether there was one.

  Raises:
    ValueError: all checkpoints are damaged, or the newest is of another model.
  """
  newest, damaged = checkpoint_lib.newest(folder)
  for message in damaged:
    show(f"skipped: {message}")
  if newest is None:
    return False
  run.restore(newest)
  show(f"restored step {newest.step} from {folder}")
  changes = differences(newest.params, run.params.ToText())
  if not trains:
    changes = "\n".join(c for c in changes.splitlines() if c[2:8] != "train.")
  if changes:
    show("changed since then:\n" + indent(changes))
  return True


class Trainer:
  """Trains a run to its last step, saving and evaluating on the way."""

  def __init__(
    self,
    run: Run,
    logdir: pathlib.Path,
    *,
    trains: bool = True,
    evaluates: bool = True,
    profile: Window | None = None,
  ) -> None:
    self._run = run
    self._guard = Guard(run)
    self._profiler = Profiler(run, profile, logdir) if profile else None
    self._p = run.params.train
    self._logdir = logdir
    self._metrics = MetricsFile(logdir)
    self._monitor = Monitor(run, logdir)
    self._line = ProgressLine(run.params.train.max_steps)
    self._evaluates = evaluates and run.eval_input is not None
    self._eval_function: Any = None
    self._evaluated: dict[str, float] = {}
    self._first_step = run.step
    self._stop: StopSignal | None = None
    # Steps that take longer, for a function is made for them.
    first = range(run.step + 1, run.step + 1 + self._p.steps_per_call)
    self._traced_at = {*first, profile.first - 1 if profile else 0}
    self._saver = Saver(run, logdir)
    # What is wrong with the data is found here, before the first step.
    if trains:
      if run.step < self._p.max_steps:
        self._saver.check_space()
      self._batches: Iterator[Any] = self._monitor.watched(iter(run.batches()))
    if self._evaluates and run.eval_input is not None:
      run.eval_input.dataset()

  def train(self) -> None:
    """Runs steps until `max_steps`, the end of the data, or a signal to stop.

    Raises:
      FloatingPointError: an update was not finite, or its loss a spike, and the Params
        say stop.
      StepError: a layer or the input has failed.
      OSError: a file could not be written; what was saved before is whole.
    """
    run_folder.begin(self._logdir)
    try:
      with self._guard:
        ended = self._train()
    except FloatingPointError as error:
      with contextlib.suppress(OSError):
        run_folder.end(self._logdir, f"stopped: {error}")
      raise
    if ended:
      run_folder.end(self._logdir, ended)

  def _train(self) -> str:
    """Does what `train` does; says what has ended it before the last step."""
    run, p = self._run, self._p
    step, ended, waiting = run.step, "", ""
    metrics_cut.cut(self._logdir / "metrics.jsonl", step)
    function: Any = None
    if step >= p.max_steps:
      show(f"nothing to train: step {step} is not below max_steps={p.max_steps}")
    else:
      stop_lib.at("building the step")
      show("building the step; the first one takes longest")
      function = self._guard.building()
    self._catch_up(step)
    progress = Progress(step, p.max_steps, run.input.params.batch_size)
    with StopSignal() as stop:
      self._stop = stop
      with self._saver as saver, Fetcher(self._taken(), stop) as batches:
        while step < p.max_steps and not stop.name:
          try:
            batch = self._guard.batch(batches, f"step {step + 1}", run.input)
          except GivenUp:
            waiting = f", waiting for the input, {type(run.input).__name__}"
            break
          if batch is None:
            ended = f"the training data ended after step {step}"
            show(ended)
            break
          each = calls.parts(batch, p.steps_per_call)
          if step == self._first_step:
            self._metrics.write("plan", step, self._monitor.start(each[0]))
          outputs = self._step(function, step + 1, batch)
          for part, given in zip(
            each, calls.parts(outputs, p.steps_per_call), strict=True
          ):
            step += 1
            saver.check()
            self._guard.check(step, part, given)
            if step in self._traced_at:
              progress.restart(step)
            if step % p.log_interval_steps == 0 or step == p.max_steps:
              self._log(step, given, progress)
          self._line.step(step)
          if saver.is_due(step):
            saver.save()
          every = p.eval_interval_steps
          if every and step % every == 0 and step < p.max_steps:
            saver.save()
            self._evaluate()
            progress.restart(step)
        # Still within: a signal that comes now must not lose what it would save.
        saver.save()
      trained = step > self._first_step
      if trained:
        self._write_page()
      if self._evaluates and not stop.name:
        self._evaluate()
        if trained:
          self._write_page()
      stop_lib.at("ending")
    if stop.name:
      ended = (
        f"stopped by {stop.name} after step {step}{waiting}; the same command continues"
      )
      show(ended)
    return ended

  def _taken(self) -> Iterator[Any]:
    """Gives away the training batches, of which nothing is kept."""
    batches, self._batches = self._batches, iter(())
    return batches

  def _step(self, function: Any, step: int, batch: Any) -> Mapping[str, Any]:
    """Runs a step, and measures it if it is to be."""
    profiler = self._profiler
    timed = profiler.function(step) if profiler else None
    outputs = self._guard.step(step, timed or function, batch)
    if profiler:
      profiler.add(step, outputs)
      if step == profiler.last:
        values = self._monitor.profiled(step, profiler.timelines["measured"])
        self._metrics.write("profile", step, values)
    return outputs

  def _catch_up(self, step: int) -> None:
    """Makes the evaluation that a run killed after its last save did not come to."""
    interval = self._p.eval_interval_steps
    due = interval and step and step % interval == 0 and step < self._p.max_steps
    if due and not self.is_evaluated(step):
      self._evaluate()

  def _write_page(self) -> None:
    """Writes the page of the run, `report.html`."""
    profiler = self._profiler
    text = run_page.page(
      self._run,
      self._metrics.curves(),
      self._evaluated,
      profiler.timelines if profiler else {},
      profiler.comparison if profiler else None,
    )
    (self._logdir / "report.html").write_text(text)

  def evaluate(self) -> None:
    """Evaluates on the whole split and reports.

    Raises:
      StepError: a layer or the input has failed.
      OSError: a file could not be written.
    """
    with self._guard:
      self._evaluate()

  def _evaluate(self) -> None:
    if not self._evaluates:
      return
    if self._eval_function is None:
      stop_lib.at(f"building the evaluation of step {self._run.step}")
      self._eval_function = self._guard.building_evaluation()
    stop_lib.at(f"evaluating step {self._run.step}")
    values = evaluate(self._run, self._eval_function, self._guard, self._stop)
    if values is None:  # the same command makes it when it continues
      return
    self._evaluated = values
    step = self._run.step
    # The record comes last: it says that nothing of this evaluation is left to do.
    with stop_lib.held():
      self._saver.save_if_best(values)
      self._metrics.write("eval", step, values)
      self._monitor.write("eval", step, values)
      show("eval " + line({"step": step, **values}))

  def is_evaluated(self, step: int) -> bool:
    """Says whether the folder has an evaluation of a step."""
    curves = self._metrics.curves().values()
    return any(step in dict(kinds.get("eval", ())) for kinds in curves)

  def _log(self, step: int, outputs: Mapping[str, Any], progress: Progress) -> None:
    values = means(outputs["metrics"])
    update = outputs["update"]
    values["loss"] += float(update["l2_loss"])
    values["learning_rate"] = float(update["learning_rate"])
    values["grad_norm"] = float(update["grad_norm"])
    values["clip_factor"] = float(update["clip_factor"])
    if "loss_scale" in update:
      values["loss_scale"] = float(update["loss_scale"])
    rate, left = progress.rate(step)
    if rate:
      values["examples/s"] = rate
    values |= self._monitor.values(update, rate)
    self._metrics.write("train", step, values)
    self._monitor.write("train", step, values)
    self._line.log(step, values, left)
