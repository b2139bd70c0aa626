"""The Params of an experiment with what a command line changes."""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe import registry
from tfpipe.params import Params


def model_params(name: str, changes: Sequence[str]) -> Params:
  """Gives the Params of an experiment with `key.path=value` changes.

  Raises:
    LookupError: no such experiment.
    ValueError, AttributeError, TypeError: a bad override.
  """
  experiment = registry.Get(name)
  params = experiment().Model()
  if not isinstance(params, Params):
    raise TypeError(f"{experiment.Name()}.Model() must return Params, got {params!r}")
  own = params.name
  seen: dict[str, str] = {}
  for override in changes:
    path, equals, value = (part.strip() for part in override.partition("="))
    if not equals:
      raise ValueError(f"--set {override!r}: must be key.path=value")
    if seen.setdefault(path, value) != value:
      raise ValueError(f"{path} is set twice: to {seen[path]} and to {value}")
    params.SetFromText(path, value)
  if params.name != own:
    raise ValueError(
      f"name={params.name!r}: must be {own!r}, the experiment's; --model takes another"
    )
  return params
