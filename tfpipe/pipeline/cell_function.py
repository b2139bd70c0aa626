"""Consecutive layers as one function for each thing that a schedule does.

A cell's functions call those of its layers, one after the other, so that nothing is
traced twice: a layer that is equal to another, or a cell. A `Wire` names a value:

    ("arg", n)            argument n of the cell
    ("seeds", layer)      seeds of a layer, made of arguments
    ("out", layer, n)     what a layer's forward gives: outputs, then what is kept
    ("dy", layer, n)      a gradient that reaches a layer; of layer -1, the cell's own
    ("carried", layer, n) what a layer's B carries to its W

The weights cross the graph of a step as one `Bundle`, and so do the moments, unless
the step is compiled as a whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfpipe.lazy import tf
from tfpipe.pipeline.bundle import Item, Wire, bundles
from tfpipe.pipeline.call import Call, Execution
from tfpipe.pipeline.cell_call import CellCall, Values, spec_of
from tfpipe.pipeline.layer_function import LayerFunction


@dataclasses.dataclass(frozen=True)
class CellOutputs:
  """What one call of a cell gives.

  Attributes:
    tensors: the tensors of the border, flat.
    losses: losses of this cell to be minimized, sums over the micro-batch's examples.
    moments: batch moments (mean, variance, mean, variance, ...), as one if bundled.
  """

  tensors: list[tf.Tensor]
  losses: list[tf.Tensor]
  moments: list[tf.Tensor]


class CellFunction:
  """What computes consecutive layers, for one shape of inputs.

  Args:
    layers: functions of the layers, in order.
    side: names of the batch fields that they read, sorted.
    execution: how it is run.

  Attributes:
    args: its arguments, see `cell.flat_args`, and
    specs: shapes and dtypes of what they hold.
    num_weights: how many of them are weights; these come first.
    given: its outputs.
    num_outputs: number of all tensors in `CellOutputs`.
    moment_specs: what the moments are like.
    out_specs: nest of what the last layer returns: the inputs of the next cell.
  """

  def __init__(
    self, layers: Sequence[LayerFunction], side: Sequence[str], execution: Execution
  ) -> None:
    self.layers = layers
    self.execution = execution
    self.specs: dict[Wire, tf.TensorSpec] = {}
    self._wires = self._wire(side)
    self.num_weights = count = sum(layer.num_weights for layer in layers)
    theta: list[Wire] = [("arg", place) for place in range(count)]
    others: list[Item] = [("arg", place) for place in range(count, len(self.specs))]
    self.args: list[Item] = [*bundles(theta, packs=not execution.whole), *others]
    last = layers[-1]
    self._num_tensors = last.num_tensors
    self._losses = self._outputs(lambda f: (f.num_tensors, f.num_losses))
    self._moments = self._outputs(
      lambda f: (f.num_tensors + f.num_losses, 2 * len(f.moments))
    )
    end = len(layers) - 1
    self.given: list[Item] = [
      *[("out", end, place) for place in range(self._num_tensors)],
      *self._losses,
      *bundles(self._moments, packs=not execution.whole),
    ]
    self.moment_specs = [
      spec_of(tensor)
      for layer in layers
      for tensor in layer.outputs[layer.num_tensors + layer.num_losses :]
    ]
    self.num_outputs = len(self.given)
    self.out_specs = last.out_specs

  def _wire(self, side: Sequence[str]) -> list[list[Wire]]:
    """Names the arguments of each layer."""
    count = sum(layer.num_weights for layer in self.layers)
    first = self.layers[0]
    inputs = first.args[first.num_weights + 1 :][: first.num_inputs]
    scalar = tf.TensorSpec([], tf.int64)
    num_seeds = sum(layer.num_seeds for layer in self.layers)
    self._keys: list[Wire] = [("arg", count + place) for place in range(3)]
    keys = tf.TensorSpec([num_seeds], tf.int64)
    self.specs = dict(zip(self._keys, [keys, scalar, scalar], strict=True))
    before = count + 3
    entering: list[Wire] = [("arg", before + place) for place in range(len(inputs))]
    self.specs |= zip(entering, map(spec_of, inputs), strict=True)
    places = {name: before + len(inputs) + i for i, name in enumerate(side)}
    wires, used = [], 0
    for index, layer in enumerate(self.layers):
      theta: list[Wire] = [("arg", used + place) for place in range(layer.num_weights)]
      used += layer.num_weights
      fields = sorted(set(layer.layer.SIDE_INPUTS))
      read: list[Wire] = [("arg", places[name]) for name in fields]
      known = [*theta, ("seeds", index), *entering, *read]
      wires.append(known)
      pairs = zip(known, map(spec_of, layer.args), strict=True)
      self.specs |= {wire: spec for wire, spec in pairs if wire[0] == "arg"}
      entering = [("out", index, place) for place in range(layer.num_tensors)]
    return wires

  def _outputs(self, place: Callable[[LayerFunction], tuple[int, int]]) -> list[Wire]:
    """Lists some outputs of all layers, given the first and the number of each."""
    return [
      ("out", index, first + n)
      for index, (first, count) in enumerate(map(place, self.layers))
      for n in range(count)
    ]

  @functools.cached_property
  def forward(self) -> CellCall:
    """What gives the outputs."""
    return self.chain([layer.forward for layer in self.layers], self.given)

  def chain(
    self, calls: Sequence[Call], wanted: Sequence[Item], first: int = 0
  ) -> CellCall:
    """Makes a function that calls one of each layer, in order.

    Args:
      calls: they give what a layer's forward gives.
      wanted: what the function gives.
      first: place of the first of these that the last call gives.
    """
    firsts = [0] * (len(calls) - 1) + [first]

    def body(values: Values, _: object) -> list[tf.Tensor]:
      for index, part in enumerate(calls):
        found = values.call(index, part, self.reads(index, part))
        values.put("out", index, found, firsts[index])
      return []

    needed = [w for index, part in enumerate(calls) for w in self.reads(index, part)]
    return CellCall(self, self.specs, self.args, needed, wanted, body)

  def reads(self, index: int, part: Call, further: Sequence[Wire] = ()) -> list[Wire]:
    """Names what a layer's function reads of its arguments and what follows these."""
    known = [*self._wires[index], *further]
    return [known[place] for place in part.reads]

  def sources(self, wires: Iterable[Wire]) -> dict[Wire, None]:
    """Gives, in order, what values are made of: seeds of three arguments."""
    found: dict[Wire, None] = {}
    for wire in wires:
      found |= dict.fromkeys(self._keys if wire[0] == "seeds" else [wire])
    return found

  def seeds(self, values: Values) -> list[tf.Tensor]:
    """Gives the seeds of each layer: int64 [number, 3], see `CreateSeed`."""
    keys, step, row = values.pick(self._keys)
    sizes = [layer.num_seeds for layer in self.layers]
    rest = tf.broadcast_to(tf.stack([step, row]), [sum(sizes), 2])
    return tf.split(tf.concat([keys[:, None], rest], axis=1), sizes)

  def outputs(self, flat: Sequence[tf.Tensor]) -> CellOutputs:
    """Takes the outputs apart."""
    first = self._num_tensors + len(self._losses)
    return CellOutputs(
      list(flat[: self._num_tensors]),
      list(flat[self._num_tensors : first]),
      list(flat[first : self.num_outputs]),
    )

  def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
    """Puts the tensors of the border into the nest that the last layer returns."""
    return self.layers[-1].pack(tensors)
