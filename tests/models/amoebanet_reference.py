"""A cell of AmoebaNet in NumPy, straight from the table of its wiring.

Nothing of `models` is used but the names of the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tests.layers.reference import (
  avg_pool,
  batch_norm,
  conv2d,
  depthwise,
  max_pool,
  relu,
)
from tests.models.amoebanet_tables import WIRING

EPSILON = 1e-3
Array = np.ndarray


class Weights:
  """The weights below a path."""

  def __init__(self, values: Mapping[str, Array], path: str = "") -> None:
    self._values, self._path = values, path

  def __getitem__(self, name: str) -> Array:
    return self._values[self._path + name]

  def __contains__(self, name: str) -> bool:
    return self._path + name in self._values

  def at(self, name: str) -> Weights:
    return Weights(self._values, f"{self._path}{name}/")

  def norm(self, x: Array, name: str) -> Array:
    return batch_norm(x, self[f"{name}/gamma"], self[f"{name}/beta"], EPSILON)


def cell(
  values: Mapping[str, Array],
  genotype: str,
  kind: str,
  filters: int,
  x: Array,
  previous: Array | None,
  dilation: int = 1,
) -> Array:
  """Evaluates a cell; every step is a sentence of the paper or of its code."""
  weights = Weights(values)
  *pairs, concat = WIRING[genotype, kind].strip().splitlines()
  stride = 2 if kind == "reduction" else 1
  states = [
    conv_norm(relu(x), weights.at("input")),
    second_state(x, previous, filters, weights.at("previous")),
  ]
  for i, pair in enumerate(pairs):
    left, right = re.findall(r"(\w+)\((\d)\)", pair)
    total = 0
    for j, (name, state) in enumerate((left, right)):
      s = stride if int(state) < 2 else 1
      total = total + apply(
        name, states[int(state)], filters, s, dilation, weights.at(f"op_{2 * i + j}")
      )
    states.append(total)
  parts = []
  for k, state in enumerate(map(int, concat.split())):
    part, below = states[state], weights.at(f"output_{k}")
    if part.shape[1] != states[-1].shape[1]:
      part = factorized_reduction(part, below)
    elif part.shape[3] != filters:
      part = conv_norm(part, below)
    parts.append(part)
  return np.concatenate(parts, -1)


def second_state(
  x: Array, previous: Array | None, filters: int, weights: Weights
) -> Array:
  if previous is None:
    return x
  if previous.shape[1] != x.shape[1]:
    return factorized_reduction(relu(previous), weights)
  if previous.shape[3] != filters:
    return conv_norm(relu(previous), weights)
  return previous


def apply(
  name: str, x: Array, filters: int, stride: int, dilation: int, weights: Weights
) -> Array:
  """Applies the operation of that name."""
  if "pool" in name:
    pool = max_pool if name.startswith("max") else avg_pool
    y = pool(x, int(name[-1]), stride)
    return y if y.shape[3] == filters else conv_norm(y, weights.at("projection"))
  if name == "none" and stride == 1 and x.shape[3] == filters:
    return x
  if name in ("none", "1x1"):
    return conv_norm(relu(x), weights, (stride, stride))
  if "separable" in name:
    rate = dilation if name.startswith("dil_2") else 1
    for i, s in enumerate((stride, 1)):
      x = depthwise(relu(x), weights[f"conv_{i}/depthwise"], s, rate)
      x = weights.norm(conv2d(x, weights[f"conv_{i}/pointwise"]), f"norm_{i}")
    return x
  steps = {"3x3": [(stride, stride)], "1x7_7x1": [(1, stride), (stride, 1)]}[name]
  for i, strides in enumerate([(1, 1), *steps, (1, 1)]):
    x = weights.norm(conv2d(relu(x), weights[f"conv_{i}/w"], strides), f"norm_{i}")
  return x


def conv_norm(x: Array, weights: Weights, strides: tuple[int, int] = (1, 1)) -> Array:
  return weights.norm(conv2d(x, weights["conv_0/w"], strides), "norm_0")


def factorized_reduction(x: Array, weights: Weights) -> Array:
  """Joins two 1×1 convolutions of stride 2, the second shifted by a pixel."""
  shifted = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))[:, 1:, 1:]
  parts = [
    conv2d(part, weights[f"conv_{i}/w"], (2, 2)) for i, part in enumerate((x, shifted))
  ]
  return weights.norm(np.concatenate(parts, -1), "norm")
