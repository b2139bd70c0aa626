"""A network cut into stages for one program: its vectors, borders and stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfpipe.layers.base import Layer
from tfpipe.lazy import tf
from tfpipe.pipeline import checks, mixed_precision
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.cell import Cell, gradient_keys, make_cells
from tfpipe.pipeline.micro_batch import micro_batch_size
from tfpipe.pipeline.pipeline import declared_weights, seed_keys
from tfpipe.spmd.border import Border
from tfpipe.spmd.layout import Layout
from tfpipe.spmd.mini_batch import MiniBatch
from tfpipe.spmd.stage import Stage
from tfpipe.structure import static_shape

DTYPES = ("float32", "bfloat16")
"""What layers may compute in."""


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Numbers of a network: stages, micro-batches, and rows of a micro-batch."""

  stages: int
  micro_batches: int
  rows: int


class StagedNetwork:
  """What is known of a network before a step is built.

  Args:
    layers: all layers, in order.
    ranges: half-open layer range of each stage.
    batch: specs [rows, ...] of the fields of a mini-batch of one pipeline.
    num_micro_batches: of that mini-batch.
    input_fields: batch fields that enter the first layer.
    seed: of start values and random numbers.
    compute_dtype: what layers compute in.
    remat: what a forward keeps for its backward, see `Stage`.

  Attributes:
    layers: as given, and `ranges`, `input_fields`, `remat`.
    batch: the mini-batch as devices have it.
    stages: what each stage computes.
    sizes: see `Sizes`.
    inputs: what crosses to the next stage, and
    gradients: back to the one before.
    kept: what each stage keeps between a forward and its backward.
    weights: the weights that learn, of each stage; a tied one is in several.
    fixed: all other weights of each stage.
    moments: the norms of each stage, and the shape of their moments.
    metrics: names of the metrics.

  Raises:
    ValueError: layers, cut and batch do not fit, or cannot run so.
  """

  def __init__(
    self,
    layers: Sequence[Layer],
    ranges: Sequence[tuple[int, int]],
    batch: Mapping[str, tf.TensorSpec],
    num_micro_batches: int,
    *,
    input_fields: Sequence[str],
    seed: int = 0,
    compute_dtype: str = "float32",
    remat: str = "cell",
  ) -> None:
    if compute_dtype not in DTYPES:
      raise ValueError(
        f"pipeline.compute_dtype={compute_dtype!r}: must be one of {', '.join(DTYPES)} "
        "where all devices run one program"
      )
    checks.check_layers(layers, ranges)
    checks.check_fields(batch, layers, input_fields)
    self.layers, self.ranges = layers, ranges
    self.input_fields = tuple(input_fields)
    self.remat = remat
    mixed_precision.prepare(layers, compute_dtype, "")
    self.declared = declared_weights(layers)
    (rows, *_) = static_shape(next(iter(batch.values())))
    rows = micro_batch_size(rows, num_micro_batches)
    self.sizes = Sizes(len(ranges), num_micro_batches, rows)
    self.batch = MiniBatch(batch, num_micro_batches)
    cells = self._cells(batch)
    checks.check_metrics(cells[-1].function.out_specs, layers[-1].name)
    trainable = {name for name, w in self.declared.items() if w.trainable}
    self.stages = [
      Stage(number, cell, keys, seed_keys(layers, seed), remat)
      for number, (cell, keys) in enumerate(
        zip(cells, gradient_keys(cells, trainable), strict=True)
      )
    ]
    self._check_learns(trainable)
    self._lay_out(cells, trainable)

  def l2_names(self) -> list[str]:
    """Names of the weights that the L2 term of the loss counts."""
    return [n for n, w in self.declared.items() if w.l2 and w.trainable]

  def _cells(self, batch: Mapping[str, tf.TensorSpec]) -> list[Cell]:
    part = {
      name: tf.TensorSpec([self.sizes.rows, *static_shape(spec)[1:]], spec.dtype)
      for name, spec in batch.items()
    }
    entering = tuple(part[name] for name in self.input_fields)
    inputs: Any = entering if len(entering) > 1 else next(iter(entering))
    how = Execution(whole=True)
    return make_cells(self.layers, self.ranges, inputs, part, execution=how)

  def _check_learns(self, trainable: set[str]) -> None:
    learns = {name for stage in self.stages for name in stage.learns}
    for name in self.declared:
      if name in trainable - learns:
        raise ValueError(
          f"weight {name!r} has no gradient: the loss doesn't depend on it"
        )

  def _lay_out(self, cells: Sequence[Cell], trainable: set[str]) -> None:
    shapes = {name: weight.shape for name, weight in self.declared.items()}
    names = [dict.fromkeys(cell.weight_names()) for cell in cells]
    self.weights, self.fixed = (
      Layout(
        tuple(
          {name: shapes[name] for name in own if (name in trainable) == learns}
          for own in names
        )
      )
      for learns in (True, False)
    )
    ends = [cell.function.layers[-1] for cell in cells[:-1]]
    crossing = [
      [tf.TensorSpec(t.shape, t.dtype) for t in end.outputs[: end.num_tensors]]
      for end in ends
    ]
    self.inputs = Border(crossing)
    self.gradients = Border(
      [
        [spec for spec, comes in zip(specs, stage.dxs, strict=True) if comes]
        for specs, stage in zip(crossing, self.stages[1:], strict=True)
      ]
    )
    self.kept = Border([stage.kept for stage in self.stages], "is kept in stage {}")
    self.moments = Layout(
      tuple(
        {
          name: static_shape(spec)
          for (name, _), spec in zip(
            cell.moment_names(), cell.function.moment_specs[::2], strict=True
          )
        }
        for cell in cells
      )
    )
    self.metrics = list(cells[-1].function.out_specs)
