"""From a plan to a run that is ready: checks, TensorFlow's start, weights restored.

What the modes that run a network need of the trainer. It is apart from the flags, so
that a plan is shown without importing it.
"""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

from tfpipe import model
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program import (
  checkpoint,
  modes,
  profile,
  quiet,
  run_folder,
  stop,
  warm_start,
)
from tfpipe.program import decode as decode_lib
from tfpipe.program import export as export_lib
from tfpipe.program.dry_run import dry_run
from tfpipe.program.lock import lock
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.program.train import Trainer, restore_newest
from tfpipe.program.watch import watch

# What a mode without a checkpoint cannot do.
_VERBS = {"eval": "evaluate", "decode": "decode with", "export": "export"}


class Startup:
  """Starts what the flags ask for.

  Args:
    params: of the run.
    flags: absl's FlagValues of the trainer.

  Raises:
    ValueError: the mode and its flags do not go with these Params; no device has been
      touched.
  """

  def __init__(self, params: Params, flags: Any) -> None:
    self._params, self._flags = params, flags
    self._options = decode_lib.Options(
      flags.prompt, flags.num_tokens, flags.temperature, flags.top_k, flags.decode_seed
    )
    self._window = None
    if flags.mode == "decode":
      decode_lib.check(params, self._options)
    if flags.mode == "export":
      export_lib.check(params)
    if flags.profile is not None:
      profile.check(params)
      self._window = profile.parse(flags.profile, params.train.max_steps)

  def set_up(self, plan: Plan, held: contextlib.ExitStack) -> Trainer | None:
    """Starts TensorFlow, makes the run and restores it, or refuses before any step.

    Args:
      plan: of the Params.
      held: gets what holds the folder of the run.

    Returns:
      what trains or evaluates; None if the mode is done.
    """
    mode, watches = self._flags.mode, self._flags.watch
    logdir, params = self._folder(), self._params
    trains, evaluates = mode in modes.TRAINING, mode != "train"
    found = self._take_over(logdir, held)
    if not (trains or watches or checkpoint.paths(logdir)):
      raise ValueError(f"--logdir={logdir}: there is no checkpoint to {_VERBS[mode]}")
    source = warm_start.find(params.train, logdir) if trains else None
    run = self._run(plan, trains=trains)
    restored = not watches and restore_newest(run, logdir, trains=trains)
    if source and not restored:
      warm_start.take(run, source)
    if mode == "decode":
      stop.at("decoding")
      return show(decode_lib.decode(run, self._options))
    if mode == "export":
      stop.at("exporting")
      return show("\n".join(export_lib.export(run, logdir)))
    window = profile.left(self._window, run.step)
    trainer = Trainer(run, logdir, trains=trains, evaluates=evaluates, profile=window)
    if trains and not found:
      logdir.mkdir(parents=True, exist_ok=True)
      held.enter_context(lock(logdir))
      if checkpoint.paths(logdir):
        raise ValueError(f"--logdir={logdir}: another process has just trained there")
    if trains:
      with stop.held():
        run_folder.write(logdir, params, plan)
    if watches:
      return watch(run, trainer, logdir)
    return trainer

  def try_step(self, plan: Plan, held: contextlib.ExitStack) -> None:
    """Makes a dry run: the next step of a folder, or without one the first.

    Args: as of `set_up`.
    """
    logdir = None if self._flags.logdir is None else self._folder()
    if logdir:
      self._take_over(logdir, held)
    source = warm_start.find(self._params.train, logdir)
    run = self._run(plan)
    restored = logdir is not None and restore_newest(run, logdir)
    if source and not restored:
      warm_start.take(run, source)
    stop.at("trying the first step")
    dry_run(run, logdir, evaluates=self._flags.mode != "train")

  def _folder(self) -> pathlib.Path:
    return pathlib.Path(self._flags.logdir).expanduser()  # no shell does it behind `=`

  def _take_over(self, logdir: pathlib.Path, held: contextlib.ExitStack) -> bool:
    """Checks the folder of the run, and holds it to train; says whether it is there."""
    run_folder.check(logdir)
    stop.at("starting TensorFlow", lambda: checkpoint.saved(logdir))
    found = logdir.is_dir()
    if self._flags.mode in modes.TRAINING and found:
      held.enter_context(lock(logdir))
    return found

  def _run(self, plan: Plan, *, trains: bool = True) -> Run:
    """Starts TensorFlow and makes the run."""
    with quiet.start_up():
      # Weights can take long and much memory: what is missing is found before.
      for name in modes.inputs(self._flags.mode, self._params):
        with model.naming(name):
          self._params.Get(name).Instantiate().check_data()
      run = Run(self._params, plan, trains=trains)
    show("devices " + ", ".join(run.devices))
    return run
