"""Evaluation: one pass over the evaluation input; nothing of the run changes."""

from __future__ import annotations

import math

from tfpipe.lazy import tf
from tfpipe.program.run import Run
from tfpipe.program.stop import StopSignal


def evaluate(
  run: Run,
  function: tf.types.experimental.ConcreteFunction,
  stop: StopSignal | None = None,
) -> dict[str, float] | None:
  """Gives each metric over the whole evaluation split.

  Args:
    run: the run.
    function: its `eval_function`.
    stop: looked at before each batch.

  Returns:
    name → sum over all examples / total weight; for `log_perplexity` also
    `perplexity`. None if it was told to stop.
  """
  assert run.eval_input is not None
  sums: dict[str, float] = {}
  weights: dict[str, float] = {}
  for batch in run.eval_input.dataset():
    if stop and stop.name:
      return None
    for name, (total, weight) in function(batch).items():
      sums[name] = sums.get(name, 0.0) + float(total)
      weights[name] = weights.get(name, 0.0) + float(weight)
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
