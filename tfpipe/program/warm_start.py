"""Weights that start from another run's: fine-tuning, with some of the layers new."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

from tfpipe import saving, text_files
from tfpipe.cost import ArraySpec
from tfpipe.params import Params
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import Checkpoint
from tfpipe.program.report import show
from tfpipe.program.run import Run
from tfpipe.saving import Rule
from tfpipe.spelling import nearest

_WEIGHTS = "weights/"
_MOST_NAMES = 8


def find(p: Params, logdir: pathlib.Path | None) -> Checkpoint | None:
  """Reads what `warm_start` names; None if the run does not start from it.

  Args:
    p: Params of the training loop.
    logdir: folder of the run, if any; with a checkpoint in it, the run continues from
      that.

  Raises:
    ValueError: there is no complete checkpoint.
    OSError: it cannot be read.
  """
  if not p.warm_start:
    return None
  owner = f"train.warm_start={p.warm_start!r}"
  if logdir and checkpoint_lib.paths(logdir):
    show(f"{owner} is not used: the run continues from a checkpoint of its own")
    return None
  path = text_files.home(p.warm_start, owner)
  if not path.exists():
    raise ValueError(f"{owner}: there is no such file or folder")
  try:
    if not path.is_dir():
      return checkpoint_lib.load(path)
    newest, damaged = checkpoint_lib.newest(path)
  except ValueError as error:
    raise ValueError(f"{owner}: {error}") from error
  for message in damaged:
    show(f"skipped: {message}")
  if newest is None:
    raise ValueError(f"{owner}: there is no checkpoint-*.npz in this folder")
  return newest


def take(run: Run, source: Checkpoint) -> None:
  """Starts the weights that the rules choose from another run's; all of them or none.

  Optimizer slots and counters start as ever; averages of weights start as the weights.

  Raises:
    ValueError: a rule chooses nothing, or a weight is missing or of another shape; all
      are named.
  """
  weights = run.weight_specs()
  chosen = choose(saving.rules(run.params.train), weights, source)
  run.start_from({n: source.arrays[_WEIGHTS + there] for n, there in chosen.items()})
  show(summary(chosen, weights, source))


def choose(
  rules: Sequence[Rule], weights: Mapping[str, ArraySpec], source: Checkpoint
) -> dict[str, str]:
  """Finds the weight of another run that each weight starts from.

  Args:
    rules: of `train.warm_start_rules`; the first that matches a weight counts.
    weights: name → shape and dtype of this run's weights.
    source: what they start from.

  Returns:
    name → name in the other run, for the weights that a rule matches.

  Raises:
    ValueError: a rule chooses nothing, or a weight is missing or of another shape.
  """
  chosen, used = {}, set()
  for name in weights:
    for rule in rules:
      match = rule.pattern.fullmatch(name)
      if match:
        chosen[name] = match.expand(rule.source) if rule.source else name
        used.add(rule)
        break
  there = _weights(source)
  problems = [_unused(rule, weights) for rule in rules if rule not in used]
  for name, other in chosen.items():
    wanted = name if other == name else f"{other} for {name}"
    if other not in there:
      problems.append(f"  missing: {wanted}{nearest(other, there)}")
    elif there[other] != weights[name]:
      problems.append(
        f"  {wanted}: {checkpoint_lib.difference(there[other], weights[name])}"
      )
  if problems:
    raise ValueError(
      f"train.warm_start_rules do not fit the checkpoint of step {source.step} of "
      f"{source.experiment}; nothing was taken:\n" + "\n".join(problems)
    )
  return chosen


def summary(
  chosen: Mapping[str, str], weights: Mapping[str, ArraySpec], source: Checkpoint
) -> str:
  """Says which weights were taken, which not, and which of the other are not used."""
  taken = [n if n == other else f"{n} from {other}" for n, other in chosen.items()]
  new = [name for name in weights if name not in chosen]
  unused = [name for name in _weights(source) if name not in chosen.values()]
  return (
    f"warm start from step {source.step} of {source.experiment}:\n"
    f"  taken: {_list(taken)}\n"
    f"  with start values of their own: {_list(new)}\n"
    f"  not used: {_list(unused)}"
  )


def _weights(source: Checkpoint) -> dict[str, ArraySpec]:
  return {
    name.removeprefix(_WEIGHTS): spec
    for name, spec in checkpoint_lib.specs(source).items()
    if name.startswith(_WEIGHTS)
  }


def _unused(rule: Rule, weights: Mapping[str, ArraySpec]) -> str:
  pair = (rule.pattern.pattern, rule.source)
  if any(map(rule.pattern.fullmatch, weights)):
    return f"  {pair!r} matches only weights that rules before it do"
  return f"  {pair!r} matches none of this run's weights: {_list(list(weights))}"


def _list(names: Sequence[str]) -> str:
  more = f", ... ({len(names)})" if len(names) > _MOST_NAMES else ""
  return (", ".join(names[:_MOST_NAMES]) or "none") + more
