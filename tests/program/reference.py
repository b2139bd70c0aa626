"""The tiny classifier in NumPy, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.program.tiny import EPSILON

NUM_BLOCKS = 4
Arrays = Mapping[str, np.ndarray]


def metrics(weights: Arrays, batch: Arrays, *, training: bool) -> dict[str, float]:
  """Gives the mean loss, accuracy and top-5 accuracy over the rows by their weight."""
  x = batch["image"].astype(np.float64).reshape(len(batch["image"]), -1)
  for i in range(NUM_BLOCKS):
    part = {k: weights[f"block_{i}/{k}"].astype(np.float64) for k in _NAMES}
    x = x @ part["w"] + part["b"]
    mean, variance = part["moving_mean"], part["moving_variance"]
    if training:
      mean, variance = x.mean(0), x.var(0)
    x = np.tanh((x - mean) / np.sqrt(variance + EPSILON))
  rows = np.arange(len(x))
  nats = np.log(np.exp(x).sum(1)) - x[rows, batch["label"]]
  # How many classes are better than the label.
  place = (x > x[rows, batch["label"]][:, None]).sum(1)
  values = {"loss": nats, "accuracy": place < 1, "accuracy_top5": place < 5}
  weight = batch["weight"].astype(np.float64)
  return {k: float((v * weight).sum() / weight.sum()) for k, v in values.items()}


def l2(weights: Arrays, factor: float) -> float:
  """Gives factor · sum(w²) / 2 over the kernels."""
  kernels = [w for name, w in weights.items() if name.endswith("/w")]
  return factor * sum(float((w.astype(np.float64) ** 2).sum()) for w in kernels) / 2


def weights_of(arrays: Arrays, prefix: str = "weights/") -> dict[str, np.ndarray]:
  """Picks the entries of a checkpoint under a prefix."""
  return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


_NAMES = ("w", "b", "moving_mean", "moving_variance")
