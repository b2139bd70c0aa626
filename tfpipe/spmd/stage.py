"""What a stage computes in a tick, in a program that is the same for all stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tfpipe.lazy import tf
from tfpipe.pipeline.call import Call
from tfpipe.pipeline.cell import Cell, weight_names
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.pipeline.tie import tied
from tfpipe.traced import specs

Named: TypeAlias = "Mapping[str, tf.Tensor]"

Place: TypeAlias = "tuple[int, int]"
"""A layer, and a place among its arguments and what is kept behind them."""


@dataclasses.dataclass(frozen=True)
class Outputs:
  """What a forward gives: its tensors, losses of its layers, moments of its norms."""

  tensors: list[tf.Tensor]
  losses: list[tf.Tensor]
  moments: list[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Arguments:
  """What the layers of a stage are called with, for one micro-batch.

  Attributes:
    theta: the stage's weights by global name.
    fields: batch fields of the micro-batch.
    step: int64 scalar, number of the step.
    row: int64 scalar, number of the micro-batch's first row in the mini-batch.
  """

  theta: Named
  fields: Named
  step: tf.Tensor
  row: tf.Tensor


class Stage:
  """A cell and its gradient, made of the functions of its layers.

  Args:
    number: of the stage.
    cell: its layers.
    keys: which gradient of each layer is needed.
    seed_keys: key of each seed by global name.
    remat: what a forward keeps for its backward: everything that this reads (`none`),
      the input of each layer (`layer`), or of the stage (`cell`).

  Attributes:
    cell: as given.
    dxs: for each input tensor, whether there is a gradient with respect to it.
    learns: names of the weights that have a gradient.
    kept: specs of what a forward keeps. The first stage keeps no input of its own: it
      is in the mini-batch.
  """

  def __init__(
    self,
    number: int,
    cell: Cell,
    keys: Sequence[GradientKey],
    seed_keys: Mapping[str, int],
    remat: str,
  ) -> None:
    self.cell = cell
    self._number = number
    self._functions = cell.function.layers
    pairs = zip(self._functions, keys, strict=True)
    self._gradients = [function.gradient(key) for function, key in pairs]
    self._weights = [weight_names(layer) for layer in cell.layers]
    self._seeds = [
      [seed_keys[f"{layer.name}/{path}"] for path in layer.seeds()]
      for layer in cell.layers
    ]
    self.dxs = self._gradients[0].dxs
    self.learns = {
      names[place]
      for names, gradient in zip(self._weights, self._gradients, strict=True)
      for place in gradient.weights
    }
    self._remat = remat
    self._places = self._what_is_kept()
    self.kept = specs(self._traced(place) for place in self._places)

  def parts(self) -> list[tuple[str, str]]:
    """Lists what there is to compute: names of layers, `forward` or `backward`."""
    backward = [
      (layer.name, "backward")
      for layer, gradient in zip(self.cell.layers, self._gradients, strict=True)
      if gradient.num_dxs or gradient.weights
    ]
    return [*((layer.name, "forward") for layer in self.cell.layers), *backward]

  def keep(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Gives what is kept where the backward begins with the forward: the inputs."""
    return list(inputs) if self._number else []

  def forward(
    self, inputs: Sequence[tf.Tensor], given: Arguments
  ) -> tuple[Outputs, list[tf.Tensor]]:
    """Computes the cell; gives also what is kept of it."""
    keeps = self._remat == "none"
    calls = [
      gradient.forward if keeps else function.forward
      for function, gradient in zip(self._functions, self._gradients, strict=True)
    ]
    outputs, known = self._run(calls, inputs, given)
    return outputs, [known[index][place] for index, place in self._places]

  def backward(
    self,
    kept: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    given: Arguments,
    dys: Sequence[tf.Tensor],
  ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor], Outputs | None]:
    """Computes the gradient of the cell, after what was not kept of the forward.

    Args:
      kept: of the forward.
      inputs: of the forward; read on the first stage only.
      given: likewise, all of it.
      dys: gradients with respect to its outputs, of those that have one.

    Returns:
      gradients with respect to the inputs that have one; those of the weights, by name;
      what the forward gives, if all of it was computed again.
    """
    outputs: Outputs | None = None
    if self._remat == "cell":
      calls = [gradient.forward for gradient in self._gradients]
      own = tied(kept if self._number else inputs, dys)
      outputs, known = self._run(calls, own, given)
    else:
      known = self._remembered(kept, inputs, given)
    sums: dict[str, tf.Tensor] = {}
    for index in reversed(range(len(self._gradients))):
      gradient, names = self._gradients[index], self._weights[index]
      own = known[index]
      if self._remat == "layer":
        own = self._again(index, own, dys)
      with tf.name_scope(self._scope(index, "backward")):
        found = _call(gradient.backward, [*own, *dys])
      dys = found[: gradient.num_dxs]
      for place, value in zip(gradient.weights, found[gradient.num_dxs :], strict=True):
        name = names[place]
        sums[name] = sums[name] + value if name in sums else value
    return list(dys), sums, outputs

  def _what_is_kept(self) -> list[Place]:
    """Lists what a forward keeps, each value once."""
    found: list[Place] = []
    for index, (function, gradient) in enumerate(
      zip(self._functions, self._gradients, strict=True)
    ):
      first = function.num_weights + 1
      inputs = range(first, first + function.num_inputs)
      behind = range(len(function.args), len(function.args) + len(gradient.kept))
      reads = gradient.backward.reads
      if self._remat == "layer":
        reads = list(inputs) if gradient.num_dxs or gradient.weights else []
      elif self._remat == "cell":
        reads = [] if index else list(inputs)
      read = [(index, p) for p in reads if p in inputs or p in behind]
      read = [place for place in read if not _is_scratch(self._traced(place))]
      found += [self._source(place) for place in read]
    return [
      place
      for place in dict.fromkeys(found)
      if self._number or place not in self._entering()
    ]

  def _entering(self) -> list[Place]:
    function = self._functions[0]
    first = function.num_weights + 1
    return [(0, first + n) for n in range(function.num_inputs)]

  def _source(self, place: Place) -> Place:
    """Gives the place of the same value that comes last: in the next layer's inputs."""
    index, number = place
    function = self._functions[index]
    if index + 1 < len(self._functions) and number >= len(function.args):
      name = self._traced(place).name
      outputs = [t.name for t in function.outputs[: function.num_tensors]]
      if name in outputs:
        return (index + 1, self._first_input(index + 1) + outputs.index(name))
    return place

  def _first_input(self, index: int) -> int:
    return self._functions[index].num_weights + 1

  def _traced(self, place: Place) -> tf.Tensor:
    """Gives the tensor at a place in the traced graph of its layer."""
    index, number = place
    args = self._functions[index].args
    if number < len(args):
      return args[number]
    return self._gradients[index].kept[number - len(args)]

  def _remembered(
    self, kept: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], given: Arguments
  ) -> list[list[Any]]:
    """Gives the arguments of each layer and what was kept behind them, as `_run`.

    What was not kept is None.
    """
    values: dict[Place, Any] = dict(zip(self._places, kept, strict=True))
    if not self._number:
      values |= zip(self._entering(), inputs, strict=True)
    known = []
    for index, (function, gradient) in enumerate(
      zip(self._functions, self._gradients, strict=True)
    ):
      first = self._first_input(index)
      count = len(function.args) + len(gradient.kept)
      own = [values.get(self._source((index, number))) for number in range(count)]
      for number, tensor in enumerate(gradient.kept, len(function.args)):
        own[number] = tf.zeros([]) if _is_scratch(tensor) else own[number]
      own[:first] = self._args(index, given)
      own[first + function.num_inputs : len(function.args)] = self._side(index, given)
      known.append(own)
    return known

  def _again(
    self, index: int, known: Sequence[Any], dys: Sequence[tf.Tensor]
  ) -> list[Any]:
    """Computes a layer again, from its arguments."""
    function, gradient = self._functions[index], self._gradients[index]
    args = list(known[: len(function.args)])
    first = self._first_input(index)
    inputs = slice(first, first + function.num_inputs)
    if all(value is not None for value in args[inputs]):
      args[inputs] = tied(args[inputs], dys)
    with tf.name_scope(self._scope(index, "forward")):
      return [*args, *_call(gradient.again, args)]

  def _run(
    self, calls: Sequence[Call], inputs: Sequence[tf.Tensor], given: Arguments
  ) -> tuple[Outputs, list[list[tf.Tensor]]]:
    """Calls a forward of each layer.

    Returns:
      what the cell gives; of each layer the arguments, and what it gives behind its
      outputs, which is kept for the backward.
    """
    tensors, losses, moments, known = list(inputs), [], [], []
    for index, (function, part) in enumerate(zip(self._functions, calls, strict=True)):
      args = [*self._args(index, given), *tensors, *self._side(index, given)]
      with tf.name_scope(self._scope(index, "forward")):
        found = _call(part, args)
      first = function.num_tensors + function.num_losses
      behind = len(function.outputs)
      tensors = found[: function.num_tensors]
      losses += found[function.num_tensors : first]
      moments += found[first:behind]
      known.append([*args, *found[behind:]])
    return Outputs(tensors, losses, moments), known

  def _args(self, index: int, given: Arguments) -> list[tf.Tensor]:
    """Gives weights and seeds of a layer."""
    keys = tf.constant(self._seeds[index], tf.int64, [len(self._seeds[index]), 1])
    place = tf.broadcast_to(tf.stack([given.step, given.row]), [keys.shape[0], 2])
    weights = [given.theta[name] for name in self._weights[index]]
    return [*weights, tf.concat([keys, place], axis=1)]

  def _side(self, index: int, given: Arguments) -> list[tf.Tensor]:
    names = sorted(set(self.cell.layers[index].SIDE_INPUTS))
    return [given.fields[name] for name in names]

  def _scope(self, index: int, what: str) -> str:
    return f"stage{self._number}/{self.cell.layers[index].name}/{what}/"


def _is_scratch(tensor: tf.Tensor) -> bool:
  """Says whether a tensor is what only cuDNN's batch norm keeps, of no known shape."""
  return tensor.op.type == "FusedBatchNormV3" and tensor.value_index == 5


def _call(part: Call, known: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  return part([known[place] for place in part.reads])
