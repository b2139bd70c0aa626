"""Calls of the functions of a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tfpipe.lazy import tf
from tfpipe.packed import pack, unpack, variants
from tfpipe.pipeline import tie
from tfpipe.pipeline.bundle import Bundle, Item, Wire, wires_of
from tfpipe.pipeline.call import Call
from tfpipe.traced import Function, call, trace

if TYPE_CHECKING:
  from tfpipe.pipeline.cell_function import CellFunction

Sums: TypeAlias = "Sequence[tf.Tensor] | None"


class Values:
  """The values of a cell while one of its functions is traced.

  Attributes:
    end: op of the last call of a layer's function; each waits for the one before.
  """

  def __init__(
    self,
    cell: CellFunction,
    wires: Iterable[Wire],
    tensors: Iterable[tf.Tensor],
    start: tf.Operation,
  ) -> None:
    self._cell = cell
    self._known = dict(zip(wires, tensors, strict=True))
    self.end = start

  def call(
    self, layer: int, part: Call, reads: Iterable[Wire], sums: Sums = None
  ) -> list[tf.Tensor]:
    """Calls a function of a layer, whose number an error in it will show."""
    values = self.pick(reads)
    with tf.control_dependencies([self.end]), tf.name_scope(f"layer{layer}"):
      found = part(values, sums)
    if found:
      self.end = found[0].op
    return found

  def put(
    self, kind: str, layer: int, tensors: Iterable[tf.Tensor], first: int = 0
  ) -> None:
    """Names values of a layer, in order."""
    self._known |= {(kind, layer, n): t for n, t in enumerate(tensors, first)}

  def pick(self, wires: Iterable[Wire]) -> list[tf.Tensor]:
    """Gives values."""
    return [self._get(wire) for wire in wires]

  def _get(self, wire: Wire) -> tf.Tensor:
    if wire[0] == "seeds" and wire not in self._known:
      seeds = self._cell.seeds(self)
      self._known |= {("seeds", layer): rows for layer, rows in enumerate(seeds)}
    return self._known[wire]


class CellCall:
  """A function of a cell.

  Args:
    cell: the cell.
    specs: dtype and shape of what is known.
    known: what is known when it is called.
    needed: what it reads of that; other values may be among them.
    given: what it gives.
    body: `Values` (and sums of weight gradients, or None) → gradients of weights.
    summed: what these gradients are like, by layer. They are given last; bundled, as a
      bundle of one bundle for each layer that has some.
  """

  def __init__(
    self,
    cell: CellFunction,
    specs: Mapping[Wire, tf.TensorSpec],
    known: Sequence[Item],
    needed: Iterable[Wire],
    given: Sequence[Item],
    body: Callable[[Values, Sums], list[tf.Tensor]],
    summed: Sequence[Sequence[tf.TensorSpec]] = (),
  ) -> None:
    read = cell.sources(needed)
    self._cell, self._body = cell, body
    self._places = [
      place
      for place, item in enumerate(known)
      if any(wire in read for wire in wires_of(item))
    ]
    self._known = [known[place] for place in self._places]
    self._given = list(given)
    self._specs = [[specs[wire] for wire in wires_of(item)] for item in self._known]
    self._summed = [list(own) for own in summed if own]
    self._functions: dict[bool, Function] = {}

  def __call__(
    self,
    values: Sequence[tf.Tensor],
    token: tf.Tensor,
    sums: Sequence[tf.Tensor] = (),
  ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Adds a call to the graph under construction.

    Args:
      values: as many of those known as there are; it is handed only what it reads.
      token: int64 scalar; the call begins when it is there.
      sums: the sums of weight gradients, if there are some, as the call gives the new
        ones.

    Returns:
      what the call gives; the token when it has ended.
    """
    adds = bool(sums)
    if adds not in self._functions:
      self._functions[adds] = self._trace(adds=adds)
    args = [values[place] for place in self._places]
    *found, token = call(self._functions[adds], [token, *args, *sums])
    return found, token

  def _trace(self, *, adds: bool) -> Function:
    """Makes what opens the bundles, computes and bundles again.

    Compiled code knows no bundles: what is compiled is what is between.
    """
    token = tf.TensorSpec([], tf.int64)
    packed = [isinstance(item, Bundle) for item in self._known]
    execution, compute = self._cell.execution, self._compute
    xla = execution.xla
    if xla or execution.whole:
      sums = self._summed if adds else []
      flat = [spec for own in [*self._specs, *sums] for spec in own]
      compute = trace(compute, [token, *flat], xla=xla)
      if execution.whole:
        return compute

    def body(token: tf.Tensor, *args: tf.Tensor) -> list[tf.Tensor]:
      tensors = [
        tensor
        for arg, own, is_packed in zip(args, self._specs, packed, strict=False)
        for tensor in (unpack(arg, own) if is_packed else [arg])
      ]
      sums = unpack(args[-1], variants(len(self._summed))) if adds else []
      if xla:
        pairs = zip(sums, self._summed, strict=True) if adds else ()
        sums = [tensor for pair in pairs for tensor in unpack(*pair)]
      *found, token = compute(token, *tensors, *sums)
      return [*self._pack(found), token]

    pairs = zip(self._specs, packed, strict=True)
    known = [spec for own, p in pairs for spec in (variants(1) if p else own)]
    return trace(body, [token, *known, *variants(int(adds))])

  def _compute(self, token: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """Gives what is given and the gradients, one by one, and the token."""
    wires = [wire for item in self._known for wire in wires_of(item)]
    token, whole = tf.identity(token), self._cell.execution.whole
    known, sums = list(tensors[: len(wires)]), list(tensors[len(wires) :])
    if whole:
      known = self._after(token, wires, known)
    values = Values(self._cell, wires, known, token.op)
    dweights = self._body(values, sums or None)
    found = [tensor for item in self._given for tensor in values.pick(wires_of(item))]
    with tf.control_dependencies([values.end]):
      end = tie.moved(token, [*found, *dweights]) if whole else tf.identity(token)
    return [*found, *dweights, end]

  def _after(
    self, token: tf.Tensor, wires: Sequence[Wire], tensors: Sequence[tf.Tensor]
  ) -> list[tf.Tensor]:
    """Ties to the token all but weights and what is kept, which are large."""
    theta = {("arg", place) for place in range(self._cell.num_weights)}
    return [
      tie.after(token, tensor)
      if wire[0] in ("arg", "dy") and wire not in theta
      else tensor
      for wire, tensor in zip(wires, tensors, strict=True)
    ]

  def _pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    rest = iter(tensors)
    items = []
    for item in self._given:
      own = [next(rest) for _ in wires_of(item)]
      items.append(pack(own) if isinstance(item, Bundle) else own[0])
    dweights = list(rest)
    if self._cell.execution.xla:
      rest = iter(dweights)
      dweights = [pack([next(rest) for _ in own]) for own in self._summed]
    return [*items, *([pack(dweights)] if dweights else [])]


def spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
  """Gives shape and dtype of a traced tensor."""
  return tf.TensorSpec(tensor.shape, tensor.dtype)
