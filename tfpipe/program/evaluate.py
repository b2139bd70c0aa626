"""Evaluation: one pass over the evaluation input; nothing of the run changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from tfpipe.program.fetch import Fetcher, GivenUp
from tfpipe.program.guard import Guard
from tfpipe.program.run import Run
from tfpipe.program.stop import StopSignal


def evaluate(
  run: Run,
  function: Callable[[Any], Any],
  guard: Guard,
  stop: StopSignal | None = None,
) -> dict[str, float] | None:
  """Gives each metric over the whole evaluation split.

  Args:
    run: the run.
    function: its `eval_function`.
    guard: its guard.
    stop: looked at before each batch, and while it is waited for.

  Returns:
    name → sum over all examples / total weight; for `log_perplexity` also
    `perplexity`. None if it was told to stop.

  Raises:
    StepError: a layer or the input has failed.
  """
  source = run.eval_input
  assert source is not None
  sums: dict[str, float] = {}
  weights: dict[str, float] = {}
  what = f"evaluating step {run.step}"
  run.pull()
  with Fetcher(iter(source.dataset()), stop) as batches:
    for number in itertools.count(1):
      one = f"{what}, batch {number}"
      if stop and stop.name:
        return None
      try:
        batch = guard.batch(batches, one, source)
      except GivenUp:
        return None
      if batch is None:
        break
      for name, (total, weight) in guard.evaluation(one, function, batch).items():
        sums[name] = sums.get(name, 0.0) + total
        weights[name] = weights.get(name, 0.0) + weight
  return means({name: (sums[name], weights[name]) for name in sums})


def means(metrics: dict[str, tuple[float, float]]) -> dict[str, float]:
  """Divides sums by weights; NaN where the weight is 0."""
  values = {
    name: float(total) / float(weight) if float(weight) else math.nan
    for name, (total, weight) in metrics.items()
  }
  if "log_perplexity" in values:
    values["perplexity"] = math.exp(min(values["log_perplexity"], 700.0))
  return values
