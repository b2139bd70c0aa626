"""The modes of the trainer, and which flags go with which."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from tfpipe import text_files
from tfpipe.params import Params
from tfpipe.spelling import nearest

MODES = {
  "train_and_eval": "trains, then evaluates (the default)",
  "train": "only trains",
  "eval": "evaluates the newest checkpoint; with --watch each newest one of a training",
  "decode": "continues --prompt with the newest checkpoint of a language model",
  "export": "writes the newest checkpoint as a SavedModel",
  "plan": "prints the cut, the schedule and the prediction",
  "inspect": "prints what --inspect names",
}
TRAINING = ("train_and_eval", "train")
DOING = (*TRAINING, "eval", "decode", "export")
"""Modes that start TensorFlow, in a folder."""

# The modes that a flag is for; any other flag is for all.
_ONLY: dict[str, tuple[str, ...]] = {
  "logdir": DOING,
  "dry_run": TRAINING,
  "profile": TRAINING,
  "max_restarts": TRAINING,
  "watch": ("eval",),
  "prompt": ("decode",),
  "num_tokens": ("decode",),
  "temperature": ("decode",),
  "top_k": ("decode",),
  "decode_seed": ("decode",),
  "hardware": ("plan",),
  "search": ("plan",),
  "inspect": ("inspect",),
}
# Params that are of no use where nothing is evaluated.
_EVALUATING = ("train.eval_interval_steps", "train.keep_best")
_INSPECTS = ("params", "changed", "variables", "schedule")


def check(mode: str, given: Collection[str]) -> None:
  """Refuses a mode that is none, and flags without an effect in it or together.

  Args:
    mode: value of --mode.
    given: names of the flags that are given, and not given as false.

  Raises:
    ValueError: naming the flag and what is allowed.
  """
  if mode not in MODES:
    allowed = f"must be one of {', '.join(MODES)}{nearest(mode, MODES)}"
    raise ValueError(f"--mode={mode}: {allowed}")
  for flag, modes in _ONLY.items():
    if flag in given and mode not in modes:
      raise ValueError(
        f"--{flag} has no effect with --mode={mode}; it is for "
        f"--mode={' or '.join(modes)}"
      )
  for flag in ("profile", "max_restarts"):
    if "dry_run" in given and flag in given:
      raise ValueError(f"--{flag} has no effect with --dry_run, which runs one step")
  if "search" in given and "hardware" not in given:
    raise ValueError("--search needs --hardware: its memory bounds the search")


def check_inspect(what: str) -> None:
  """Refuses a value of --inspect that is none.

  Raises:
    ValueError: naming what is allowed.
  """
  if what not in _INSPECTS and not what.startswith("diff:"):
    raise ValueError(
      f"--inspect={what}: must be one of {', '.join(_INSPECTS)}, or diff:EXPERIMENT"
      f"{nearest(what, [*_INSPECTS, 'diff:'])}"
    )
  if what == "diff:":
    raise ValueError("--inspect=diff: needs an experiment: diff:lm.shakespeare.Char")


def check_logdir(mode: str, logdir: str | None) -> None:
  """Refuses a folder that is missing where one is needed, or cannot be one.

  Raises:
    ValueError: naming the folder and what is wrong.
  """
  if mode not in DOING:
    return
  if not logdir:
    raise ValueError(f"--logdir is missing; --mode={mode} needs a folder")
  if "\0" in logdir:
    raise ValueError(f"--logdir={logdir!r}: a name of a folder has no null byte")
  folder = text_files.home(logdir, f"--logdir={logdir}").absolute()
  found = next(path for path in (folder, *folder.parents) if path.exists())
  if not found.is_dir():
    raise ValueError(f"--logdir={logdir}: {found} is a file, not a folder")
  if mode != "decode" and not os.access(found, os.W_OK):
    raise ValueError(f"--logdir={logdir}: {found} is not writable")


def inputs(mode: str, params: Params) -> list[str]:
  """Gives the names of the inputs that a mode reads."""
  tested = [] if params.eval_input is None else ["eval_input"]
  if mode == "export":
    return tested or ["input"]
  trained = ["input"] if mode in TRAINING else []
  return [*trained, *(tested if mode in ("train_and_eval", "eval") else [])]


def without_effect(mode: str, params: Params, changes: Iterable[str]) -> str:
  """Finds what asks for evaluations in a mode that makes none.

  Args:
    mode: value of --mode.
    params: of the run.
    changes: what the flags set, as `key.path=value`.

  Returns:
    what of the experiment's own has no effect; empty if nothing.

  Raises:
    ValueError: a flag sets it.
  """
  if mode != "train":
    return ""
  given = {change.partition("=")[0].strip() for change in changes}
  found = {name: params.Get(name) for name in _EVALUATING}
  found = {name: value for name, value in found.items() if value}
  for name, value in found.items():
    if name in given:
      raise ValueError(
        f"{name}={value!r} has no effect with --mode=train, which does not evaluate; "
        "it is for --mode=train_and_eval"
      )
  texts = [f"{name}={value!r}" for name, value in found.items()]
  return f"no evaluation with --mode=train: without {', '.join(texts)}" if texts else ""


def given(flags: Any) -> set[str]:
  """Gives the names of the flags that are given, and not given as false.

  Args:
    flags: absl's FlagValues.
  """
  return {n for n in flags if flags[n].present and flags[n].value is not False}
