"""The gradient of a cell: the gradients of its layers, called one after the other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence

from tfpipe.lazy import tf
from tfpipe.pipeline.bundle import Item, Wire, bundles, wires_of
from tfpipe.pipeline.call import Call
from tfpipe.pipeline.cell_call import CellCall, Sums, Values, spec_of
from tfpipe.pipeline.cell_function import CellFunction
from tfpipe.pipeline.gradient import GradientKey


class CellGradient:
  """The functions of a cell that training calls.

  They take all that is known when they are called: the arguments of the forward, what
  is kept of it, the upstream gradients, and, for W, what B carries to it.

  A layer that is re-materialized keeps nothing but its inputs: its forward is called
  again before its gradient (GPipe, section 2.3, for a cell of one layer).

  Attributes:
    dxs: for each input tensor, whether there is a gradient with respect to it.
    num_dxs: how many there are.
    weights: by layer, places in theta of the weights that have a gradient, in order.
    summed: by layer, shapes and dtypes of these gradients.
    kept: what is kept, as bundles: what only B reads can go before W.
  """

  def __init__(
    self,
    cell: CellFunction,
    keys: Sequence[GradientKey],
    *,
    remat: bool,
    splits: bool,
  ) -> None:
    self._cell = cell
    self._remat = remat
    layers = [f.gradient(key) for f, key in zip(cell.layers, keys, strict=True)]
    self._layers = layers
    self.dxs, self.num_dxs = layers[0].dxs, layers[0].num_dxs
    firsts = itertools.accumulate((f.num_weights for f in cell.layers), initial=0)
    places = [
      [first + place for place in gradient.weights]
      for first, gradient in zip(firsts, layers, strict=False)
    ]
    self.weights = [own for own in places if own]
    self._specs = dict(cell.specs)
    self._known: list[list[Wire]] = []
    for index, (function, gradient) in enumerate(zip(cell.layers, layers, strict=True)):
      count = len(function.outputs)
      outputs = self._name("out", index, [*function.outputs, *gradient.kept])
      dys = self._name("dy", index, gradient.dys)
      self._name("carried", index, gradient.carried)
      self._known.append([*outputs[count:], *dys])
    self.summed = [[cell.specs["arg", n] for n in own] for own in self.weights]
    self._dys = self._known[-1][len(layers[-1].kept) :]
    self._dxs: list[Wire] = [("dy", -1, n) for n in range(self.num_dxs)]
    self._forwards = (
      [function.forward for function in cell.layers]
      if remat
      else [gradient.forward for gradient in layers]
    )
    read = self._reads([gradient.backward for gradient in layers])
    if remat:
      own = {wire for known in self._known for wire in known}
      again = self._reads([gradient.again for gradient in layers])
      read = {**again, **{wire: None for wire in read if wire not in own}}
    kept = [wire for wire in read if wire[0] == "out"]
    late = self._reads([g.weight_gradient for g in layers]) if splits else {}
    self.kept = [
      *self._bundles([wire for wire in kept if wire not in late]),
      *self._bundles([wire for wire in kept if wire in late]),
    ]

  @functools.cached_property
  def forward(self) -> CellCall:
    """What gives the outputs, then what is kept."""
    return self._cell.chain(self._forwards, [*self._cell.given, *self.kept])

  @functools.cached_property
  def recompute(self) -> CellCall:
    """What gives what is kept."""
    # Of a frozen first stage nothing is kept, and nothing is computed again.
    calls = [*self._forwards[:-1], self._layers[-1].again] if self.kept else []
    count = len(self._cell.layers[-1].outputs)
    return self._cell.chain(calls, self.kept, count)

  @functools.cached_property
  def backward(self) -> CellCall:
    """What gives the gradients of the inputs, then those of the weights."""
    calls = [gradient.backward for gradient in self._layers]

    def body(values: Values, sums: Sums) -> list[tf.Tensor]:
      return self._run(calls, values, sums, again=self._remat)

    return self._call(calls, (), self._dxs, body, self.summed)

  @functools.cached_property
  def input_gradient(self) -> CellCall:
    """What gives the gradients of the inputs, then what is carried to W."""
    calls = [gradient.input_gradient for gradient in self._layers]

    def body(values: Values, _: Sums) -> list[tf.Tensor]:
      self._run(calls, values, again=self._remat)
      return []

    return self._call(calls, (), [*self._dxs, *self._carried], body)

  @functools.cached_property
  def weight_gradient(self) -> CellCall:
    """What gives the gradients of the weights."""
    calls = [gradient.weight_gradient for gradient in self._layers]
    return self._call(
      calls,
      self._carried,
      (),
      lambda values, sums: self._run(calls, values, sums),
      self.summed,
    )

  @functools.cached_property
  def _carried(self) -> list[Item]:
    known = {*self._dys, *[wire for item in self.kept for wire in wires_of(item)]}
    read = self._reads([gradient.weight_gradient for gradient in self._layers])
    return self._bundles(
      [w for w in read if w[0] not in ("arg", "seeds") and w not in known]
    )

  def _bundles(self, wires: Sequence[Wire]) -> list[Item]:
    return bundles(wires, packs=not self._cell.execution.whole)

  def _name(self, kind: str, layer: int, tensors: Iterable[tf.Tensor]) -> list[Wire]:
    """Names values of a layer, in order."""
    named: dict[Wire, tf.TensorSpec] = {
      (kind, layer, n): spec_of(tensor) for n, tensor in enumerate(tensors)
    }
    self._specs |= named
    return list(named)

  def _reads(self, calls: Sequence[Call]) -> dict[Wire, None]:
    """Names all that a function of each layer reads, from the last to the first."""
    found: dict[Wire, None] = {}
    for index in reversed(range(len(calls))):
      found |= dict.fromkeys(self._layer_reads(index, calls[index]))
    return found

  def _layer_reads(self, index: int, part: Call) -> list[Wire]:
    count = len(self._layers[index].carried)
    carried: list[Wire] = [("carried", index, n) for n in range(count)]
    return self._cell.reads(index, part, [*self._known[index], *carried])

  def _run(
    self,
    calls: Sequence[Call],
    values: Values,
    sums: Sums = None,
    *,
    again: bool = False,
  ) -> list[tf.Tensor]:
    """Calls a function of each layer, from the last to the first.

    Args:
      calls: the functions.
      values: what they are called with, and what they give.
      sums: of weight gradients, in order.
      again: whether what is kept of each layer is computed before.

    Returns:
      the gradients of all weights, if the functions give them, in order.
    """
    found: list[list[tf.Tensor]] = []
    rest = list(sums or ())
    for index in reversed(range(len(calls))):
      part, gradient = calls[index], self._layers[index]
      if again:
        reads = self._layer_reads(index, gradient.again)
        kept = values.call(index, gradient.again, reads)
        values.put("out", index, kept, len(self._cell.layers[index].outputs))
      first = len(rest) - part.num_summed if rest else 0
      own, rest = rest[first:], rest[:first]
      reads = self._layer_reads(index, part)
      given = values.call(index, part, reads, own or None)
      first = len(given) - part.num_summed
      if first:  # W gives nothing else
        values.put("dy", index - 1, given[: gradient.num_dxs])
        values.put("carried", index, given[gradient.num_dxs : first])
      found.append(given[first:])
    return [tensor for own in found[::-1] for tensor in own]

  def _call(
    self,
    calls: Sequence[Call],
    carried: Sequence[Item],
    given: Sequence[Item],
    body: Callable[[Values, Sums], list[tf.Tensor]],
    summed: Sequence[Sequence[tf.TensorSpec]] = (),
  ) -> CellCall:
    known: list[Item] = [*self._cell.args, *self.kept, *self._dys, *carried]
    again = self._reads([g.again for g in self._layers]) if self._remat else {}
    needed = {**again, **self._reads(calls)}
    return CellCall(self._cell, self._specs, known, needed, given, body, summed)
