"""What a stage computes in a tick, in a program that is the same for all stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tfpipe.lazy import tf
from tfpipe.pipeline.call import Call
from tfpipe.pipeline.cell import Cell, weight_names
from tfpipe.pipeline.gradient import GradientKey
from tfpipe.structure import is_differentiable

Named: TypeAlias = "Mapping[str, tf.Tensor]"

_LARGE = 3e38
"""Below the largest numbers of float32 and bfloat16; gradients there are lost."""


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

  Attributes:
    cell: as given.
    dxs: for each input tensor, whether there is a gradient with respect to it.
    learns: names of the weights that have a gradient.
  """

  def __init__(
    self,
    number: int,
    cell: Cell,
    keys: Sequence[GradientKey],
    seed_keys: Mapping[str, int],
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

  def parts(self) -> list[tuple[str, str]]:
    """Lists what there is to compute: names of layers, `forward` or `backward`."""
    backward = [
      (layer.name, "backward")
      for layer, gradient in zip(self.cell.layers, self._gradients, strict=True)
      if gradient.num_dxs or gradient.weights
    ]
    return [*((layer.name, "forward") for layer in self.cell.layers), *backward]

  def forward(self, inputs: Sequence[tf.Tensor], given: Arguments) -> Outputs:
    """Computes the cell."""
    calls = [function.forward for function in self._functions]
    return self._run(calls, inputs, given)[0]

  def backward(
    self, inputs: Sequence[tf.Tensor], given: Arguments, dys: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor], Outputs]:
    """Computes the cell again, then its gradient.

    Args:
      inputs: as of the forward.
      given: likewise.
      dys: gradients with respect to its outputs, of those that have one.

    Returns:
      gradients with respect to the inputs that have one; those of the weights, by name;
      what the forward gives.
    """
    calls = [gradient.forward for gradient in self._gradients]
    outputs, known = self._run(calls, inputs, given)
    sums: dict[str, tf.Tensor] = {}
    for index in reversed(range(len(calls))):
      gradient, names = self._gradients[index], self._weights[index]
      with tf.name_scope(self._scope(index, "backward")):
        found = _call(gradient.backward, [*known[index], *dys])
      dys = found[: gradient.num_dxs]
      for place, value in zip(gradient.weights, found[gradient.num_dxs :], strict=True):
        name = names[place]
        sums[name] = sums[name] + value if name in sums else value
    return list(dys), sums, outputs

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


def tied(tensors: Sequence[tf.Tensor], dys: Named) -> list[tf.Tensor]:
  """Gives the inputs of a recomputation, which no compiler can do before.

  They are what they were, but a compiler cannot know: each adds whether the gradient
  that has arrived is beyond all that is of use. Else it would find that the forward has
  computed the same and keep that instead.

  Args:
    tensors: the inputs.
    dys: vectors of gradients that have arrived, by dtype.
  """
  floats = [vector for vector in dys.values() if is_differentiable(vector)]
  if not floats:
    return list(tensors)
  flag = tf.cast(floats[0][0], tf.float32) > _LARGE
  return [
    tensor | flag if tensor.dtype == tf.bool else tensor + tf.cast(flag, tensor.dtype)
    for tensor in tensors
  ]


def _call(part: Call, known: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  return part([known[place] for place in part.reads])
