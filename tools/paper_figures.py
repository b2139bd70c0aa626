"""What the GPipe paper prints, as data: models, tables 1, 2 and 3.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
Parallelism" (2019), arXiv:1811.06965.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FITS", "MODELS", "TABLE_2", "TABLE_3", "Fit", "Model", "Point"]


class Model(NamedTuple):
  """A network of the paper.

  Attributes:
    label: what the paper calls it.
    experiment: its name here.
    parameters: their number as printed; '' if the paper prints none.
  """

  label: str
  experiment: str
  parameters: str = ""


class Fit(NamedTuple):
  """A column of table 1: the largest model that fits.

  Attributes:
    column: its heading; the number of accelerators is its end.
    model: the model.
    batch: examples of a mini-batch.
    parameter_memory: of all accelerators, in `unit`.
    activation_memory: the peak, of all accelerators, in `unit`.
    unit: the unit in which 12 bytes a parameter fit best.
  """

  column: str
  model: Model
  batch: int
  parameter_memory: float
  activation_memory: float
  unit: str


class Point(NamedTuple):
  """Where a throughput was measured: K accelerators, M micro-batches."""

  k: int
  m: int


_AMOEBANET_D = {
  (num_cells, filters): Model(
    f"AmoebaNet-D ({num_cells}, {filters})",
    f"image.paper.AmoebaNetD{num_cells}x{filters}",
    parameters,
  )
  for num_cells, filters, parameters in (
    (18, 208, "82M"),
    (18, 416, "318M"),
    (18, 544, "542M"),
    (36, 544, "1.05B"),
    (72, 512, "1.8B"),
    (18, 256, ""),
    (18, 128, ""),
  )
}
_TRANSFORMER = {
  num_layers: Model(
    f"Transformer-{num_layers}", f"lm.paper.Transformer{num_layers}", parameters
  )
  for num_layers, parameters in (
    (3, "282.2M"),
    (13, "785.8M"),
    (103, "5.3B"),
    (415, "21.0B"),
    (1663, "83.9B"),
  )
}

MODELS = (
  Model("AmoebaNet-B (18, 512)", "image.paper.AmoebaNetB18x512", "557M"),
  *_AMOEBANET_D.values(),
  *_TRANSFORMER.values(),
)

FITS = (
  Fit("Naive-1", _AMOEBANET_D[18, 208], 128, 1.05, 6.26, "GB"),
  Fit("Pipeline-1", _AMOEBANET_D[18, 416], 128, 3.8, 3.46, "GB"),
  Fit("Pipeline-2", _AMOEBANET_D[18, 544], 128, 6.45, 8.11, "GB"),
  Fit("Pipeline-4", _AMOEBANET_D[36, 544], 128, 12.53, 15.21, "GB"),
  Fit("Pipeline-8", _AMOEBANET_D[72, 512], 128, 24.62, 26.24, "GB"),
  # Printed the other way round: 11.7 of parameters and 3.15 of activations.
  Fit("Naive-1", _TRANSFORMER[3], 32, 3.15, 11.7, "GiB"),
  Fit("Pipeline-1", _TRANSFORMER[13], 32, 8.8, 6.4, "GiB"),
  Fit("Pipeline-8", _TRANSFORMER[103], 32, 59.5, 50.9, "GiB"),
  Fit("Pipeline-32", _TRANSFORMER[415], 32, 235.1, 199.9, "GiB"),
  Fit("Pipeline-128", _TRANSFORMER[1663], 32, 937.9, 796.1, "GiB"),
)

TABLE_2 = {
  "AmoebaNet-D (18, 256)": {
    Point(2, 1): 1,
    Point(4, 1): 1.13,
    Point(8, 1): 1.38,
    Point(2, 4): 1.07,
    Point(4, 4): 1.26,
    Point(8, 4): 1.72,
    Point(2, 32): 1.21,
    Point(4, 32): 1.84,
    Point(8, 32): 3.48,
  },
  "Transformer-48": {
    Point(2, 1): 1,
    Point(4, 1): 1.07,
    Point(8, 1): 1.3,
    Point(2, 4): 1.7,
    Point(4, 4): 3.2,
    Point(8, 4): 4.8,
    Point(2, 32): 1.8,
    Point(4, 32): 3.4,
    Point(8, 32): 6.3,
  },
}
"""Throughput over that of K = 2, M = 1, on TPUs."""

TABLE_3 = {
  "AmoebaNet-D (18, 128)": {Point(2, 32): 1, Point(4, 32): 1.7, Point(8, 32): 2.7},
  "Transformer-24": {Point(2, 32): 1, Point(4, 32): 1.8, Point(8, 32): 3.3},
}
"""Throughput over that of K = 2, on P100s without NVLink."""
