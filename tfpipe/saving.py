"""The Params that say when a run is saved, what is kept, and what it starts from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from tfpipe.params import Params
from tfpipe.spelling import nearest

# Whether more of a metric is better.
_MORE_IS_BETTER = {
  "loss": False,
  "log_perplexity": False,
  "perplexity": False,
  "accuracy": True,
  "accuracy_top5": True,
}
_PREFIXES = {"max:": True, "min:": False}
ALL_AS_NAMED = ((".*", ""),)


class Best(NamedTuple):
  """What makes a checkpoint the best.

  Attributes:
    metric: a metric of the evaluation.
    more: whether more of it is better.
  """

  metric: str
  more: bool

  def is_better(self, value: float, than: float) -> bool:
    """Says whether a value is better than another; NaN is worse than all."""
    if math.isnan(value) or math.isnan(than):
      return not math.isnan(value)
    return value > than if self.more else value < than


class Rule(NamedTuple):
  """Which weights of a run start from which of another.

  Attributes:
    pattern: all of the name of a weight of this run.
    source: the weight it starts from, with the groups of `pattern` as in `re.sub`;
      empty: of the same name.
  """

  pattern: re.Pattern[str]
  source: str


def define(p: Params) -> None:
  """Adds the fields to the Params of the training loop."""
  p.Define("save_interval_steps", 500, "Steps between checkpoints.")
  p.Define(
    "save_interval_minutes",
    10.0,
    "Minutes after which a checkpoint is saved whatever the steps; 0: never.",
  )
  p.Define("keep_checkpoints", 3, "Number of newest checkpoints to keep.")
  p.Define(
    "keep_every_hours",
    0.0,
    "Hours of which one checkpoint each is kept for good; 0: only the newest are.",
  )
  p.Define(
    "keep_best",
    "",
    f"Metric of which best.npz has the best: {', '.join(_MORE_IS_BETTER)}, or any as "
    "max:NAME or min:NAME; empty: no such file.",
  )
  p.Define(
    "warm_start",
    "",
    "Checkpoint of another run, or its folder, from which weights start; empty: none. "
    "A run that has a checkpoint of its own continues from that.",
  )
  p.Define(
    "warm_start_rules",
    ALL_AS_NAMED,
    "Which weights do: pairs of a regular expression that matches all of a weight's "
    "name, and its name in the other run ('': the same). The first match counts.",
  )


def check(p: Params, *, evaluates: bool) -> None:
  """Checks the fields.

  Args:
    p: Params of the training loop.
    evaluates: whether there is an evaluation input.

  Raises:
    ValueError: naming the field, its value and what is allowed.
  """
  for key in ("save_interval_minutes", "keep_every_hours"):
    value = p.Get(key)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
      raise ValueError(f"train.{key}={value!r}: must be a number, at least 0")
  if best(p) and not evaluates:
    raise ValueError(
      f"train.keep_best={p.keep_best!r}: must be '', for there is no evaluation input "
      "(Test)"
    )
  if not isinstance(p.warm_start, str):
    raise ValueError(
      f"train.warm_start={p.warm_start!r}: must be the name of a file or folder, or "
      "empty"
    )
  pairs = tuple((rule.pattern.pattern, rule.source) for rule in rules(p))
  if not p.warm_start and pairs != ALL_AS_NAMED:
    raise ValueError(
      f"train.warm_start_rules={p.warm_start_rules!r}: must be {ALL_AS_NAMED!r} while "
      "train.warm_start is empty; without it they have no effect"
    )


def check_metric(p: Params, metrics: Iterable[str]) -> None:
  """Checks that `keep_best` names one of the metrics of the model.

  Args:
    p: Params of the training loop.
    metrics: names of what the last layer gives.

  Raises:
    ValueError: naming those there are.
  """
  wanted, known = best(p), set(metrics)
  if "log_perplexity" in known:
    known.add("perplexity")
  if wanted and wanted.metric not in known:
    raise ValueError(
      f"train.keep_best={p.keep_best!r}: must be one of the model's metrics, "
      f"{', '.join(sorted(known))}{nearest(wanted.metric, known)}"
    )


def best(p: Params) -> Best | None:
  """Reads `keep_best`; None if it is empty.

  Raises:
    ValueError: it is no known metric, nor one with `max:` or `min:` before it.
  """
  text = p.keep_best
  if text == "":
    return None
  if isinstance(text, str):
    if text in _MORE_IS_BETTER:
      return Best(text, _MORE_IS_BETTER[text])
    prefix, metric = text[:4], text[4:]
    if prefix in _PREFIXES and metric:
      return Best(metric, _PREFIXES[prefix])
  raise ValueError(
    f"train.keep_best={text!r}: must be empty, a metric as max:NAME or min:NAME, or "
    f"one of {', '.join(_MORE_IS_BETTER)}{nearest(str(text), _MORE_IS_BETTER)}"
  )


def rules(p: Params) -> list[Rule]:
  """Reads `warm_start_rules`.

  Raises:
    ValueError: they are no pairs of texts, there are none, or one of them is no regular
      expression or names a group that it does not have.
  """
  given = p.warm_start_rules
  owner = f"train.warm_start_rules={given!r}"
  if not isinstance(given, (tuple, list)) or not given:
    raise ValueError(f"{owner}: must hold at least one pair (pattern, name)")
  return [_rule(owner, pair) for pair in given]


def _rule(owner: str, pair: object) -> Rule:
  if (
    not isinstance(pair, (tuple, list))
    or len(pair) != 2
    or not all(isinstance(part, str) for part in pair)
  ):
    raise ValueError(f"{owner}: {pair!r} must be a pair of texts (pattern, name)")
  pattern, source = pair
  # In a text between quotes, a group without a second backslash is such a character.
  if not source.isprintable():
    raise ValueError(
      f"{owner}: {source!r} must be a name, without control characters; a group is "
      "written with two backslashes, as in '\\\\1'"
    )
  try:
    compiled = re.compile(pattern)
  except re.error as error:
    raise ValueError(
      f"{owner}: {pattern!r} must be a regular expression: {error}"
    ) from error
  try:
    compiled.sub(source, "")  # reads the name without a match, too
  except (re.error, IndexError) as error:
    raise ValueError(
      f"{owner}: {source!r} must be a name, with no group but those of {pattern!r}: "
      f"{error}"
    ) from error
  return Rule(compiled, source)
