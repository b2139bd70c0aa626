"""Weights that are another layer's: whether they name one that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfpipe.spelling import nearest

__all__ = ["check"]


def check(weights: Mapping[str, Mapping[str, Any]]) -> None:
  """Checks that what is tied is tied to a weight of the same shape.

  Args:
    weights: of each layer by its name, what its `weights()` gives.

  Raises:
    ValueError: a tied weight does not exist or does not fit.
  """
  for layer, own in weights.items():
    for path, weight in own.items():
      if weight.tied_to:
        _check(f"{layer}/{path}", weight, weights)


def _check(name: str, weight: Any, weights: Mapping[str, Mapping[str, Any]]) -> None:
  layer, _, path = weight.tied_to.partition("/")
  found = weights.get(layer, {}).get(path)
  if found is None or found.tied_to:
    known = [
      f"{layer}/{path}"
      for layer, own in weights.items()
      for path, other in own.items()
      if not other.tied_to
    ]
    raise ValueError(
      f"{name} is tied to {weight.tied_to!r}, which no layer has"
      f"{nearest(weight.tied_to, known)}"
    )
  if found.shape != weight.shape:
    raise ValueError(
      f"{name} of shape {weight.shape} is tied to {weight.tied_to} of shape "
      f"{found.shape}"
    )
