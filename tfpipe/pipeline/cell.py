"""Cells: what the stages of a pipeline compute; equal ones are traced once.

`Cell` binds a `CellFunction`, which equal cells share, to the names of its weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfpipe.layers.base import Layer
from tfpipe.lazy import tf
from tfpipe.pipeline.call import PLAIN, Execution
from tfpipe.pipeline.cell_function import CellFunction
from tfpipe.pipeline.cell_gradient import CellGradient
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.pipeline.layer_function import LayerFunction, signature
from tfpipe.structure import Structure


@dataclasses.dataclass(frozen=True)
class Cell:
  """A stage of the pipeline.

  Attributes:
    layers: its layers, with their own names.
    function: what computes them, shared with equal cells.
    side: names of the batch fields that it reads besides its input, sorted.
  """

  layers: Sequence[Layer]
  function: CellFunction
  side: tuple[str, ...]

  def weight_names(self) -> list[str]:
    """Global names of the weights, in the order of the function's theta."""
    return [name for layer in self.layers for name in weight_names(layer)]

  def seed_names(self) -> list[str]:
    """Global names of the seeds, in the order of the function's keys."""
    return [f"{layer.name}/{p}" for layer in self.layers for p in layer.seeds()]

  def moment_names(self) -> list[tuple[str, float]]:
    """Global name and decay of each pair of moments, in the order of the outputs."""
    return [
      (f"{layer.name}/{path}" if path else layer.name, decay)
      for layer, function in zip(self.layers, self.function.layers, strict=True)
      for path, decay in function.moments
    ]


def flat_args(
  theta: Sequence[tf.Tensor],
  randomness: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
  inputs: Sequence[tf.Tensor],
  side: Mapping[str, tf.Tensor],
) -> list[tf.Tensor]:
  """Lists the arguments of a cell's functions in their order.

  Args:
    theta: the bundle of its weights, if it has any.
    randomness: keys of the seeds, int64 [number of seeds]; number of the step; number
      of the micro-batch's first row in the mini-batch, both int64 scalars.
    inputs: what the stage before gives, or the batch.
    side: batch fields.
  """
  return [*theta, *randomness, *inputs, *[side[name] for name in sorted(side)]]


def make_gradients(
  cells: Sequence[Cell],
  trainable: Collection[str],
  *,
  remat_layers: bool = False,
  splits: bool = True,
) -> list[CellGradient]:
  """Traces the gradients of consecutive cells, equal ones once, from last to first.

  Args:
    cells: of a whole network; the last one gives metrics with `loss` among them.
    trainable: global names of the weights that learn.
    remat_layers: keep only the layers' inputs for the backward pass.
    splits: whether B and W are called, not only both at once.
  """
  made: dict[tuple, CellGradient] = {}
  gradients = []
  for cell, own in zip(cells, gradient_keys(cells, trainable), strict=True):
    which = (cell.function, *own)
    if which not in made:
      made[which] = CellGradient(cell.function, own, remat=remat_layers, splits=splits)
    gradients.append(made[which])
  return gradients


def gradient_keys(
  cells: Sequence[Cell], trainable: Collection[str]
) -> list[list[GradientKey]]:
  """Says which gradient of each layer of each cell is needed; arguments as above."""
  layers = [layer for cell in cells for layer in cell.layers]
  functions = [function for cell in cells for function in cell.function.layers]
  learning = [
    tuple(i for i, name in enumerate(weight_names(layer)) if name in trainable)
    for layer in layers
  ]
  # Only layers behind the first that learns hand a gradient on.
  first = next((i for i, places in enumerate(learning) if places), len(layers))
  keys: list[GradientKey] = []
  dys: tuple[bool, ...] = (False,) * functions[-1].num_tensors
  for index, function in reversed(list(enumerate(functions))):
    key = GradientKey(
      dys=dys,
      inputs=index > first,
      theta=learning[index],
      loss=-1 if keys else function.loss_place(),
    )
    keys.append(key)
    dys = function.gradient(key).dxs
  rest = iter(keys[::-1])
  return [[next(rest) for _ in cell.layers] for cell in cells]


def make_cells(
  layers: Sequence[Layer],
  ranges: Sequence[tuple[int, int]],
  inputs: Any,
  batch: Mapping[str, tf.TensorSpec],
  *,
  do_eval: bool = False,
  execution: Execution = PLAIN,
) -> list[Cell]:
  """Traces the cells of a partition: equal layers once, equal cells once.

  Args:
    layers: all layers, in order.
    ranges: half-open layer range of each cell.
    inputs: nest of TensorSpecs that enters the first cell.
    batch: specs of one micro-batch's fields, from which layers take side inputs.
    do_eval: trace for evaluation.
    execution: how the functions are run.
  """
  traced: dict[Any, LayerFunction] = {}
  functions = []
  for layer in layers:
    structure, specs = Structure.split(inputs)
    key = (signature(layer), structure.key(), repr(specs))
    if key not in traced:
      side = {name: batch[name] for name in layer.SIDE_INPUTS}
      traced[key] = LayerFunction(
        layer, inputs, side, do_eval=do_eval, execution=execution
      )
    functions.append(traced[key])
    inputs = traced[key].out_specs
  made: dict[tuple[LayerFunction, ...], CellFunction] = {}
  cells = []
  for start, end in ranges:
    part = tuple(functions[start:end])
    side = tuple(sorted({n for f in part for n in f.layer.SIDE_INPUTS}))
    if part not in made:
      made[part] = CellFunction(part, side, execution)
    cells.append(Cell(layers[start:end], made[part], side))
  return cells


def weight_names(layer: Layer) -> list[str]:
  """Global names of a layer's weights, in the order of its theta."""
  return [w.tied_to or f"{layer.name}/{path}" for path, w in layer.weights().items()]
