"""Pieces cut out of a traced graph: from some of its tensors to some others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from tfpipe.lazy import tf

Piece: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"

# Numbers of a constant that is computed while tracing: every function keeps its own.
_MOST_FOLDED = 2**18

# Ops that hand on their inputs as they are: who keeps the input needs no output.
_ALIASES = ("Identity", "IdentityN", "StopGradient")


class GraphCutter:
  """Cuts pieces out of a graph of pure ops.

  Attributes:
    graph: of a traced function; may still grow while pieces are cut.
  """

  def __init__(self, graph: tf.Graph) -> None:
    self.graph = graph
    self._constant: dict[str, bool] = {}
    self._num_seen = 0
    # What is known of tensors: those that tell static shapes, and folded ones.
    self._shapes: dict[str, np.ndarray] = {}
    self._values: dict[str, np.ndarray] = {}

  def source(self, tensor: tf.Tensor) -> tf.Tensor:
    """Gives the tensor that this one is but another name of."""
    while tensor.op.type in _ALIASES:
      tensor = tensor.op.inputs[tensor.value_index]
    return tensor

  def reach(
    self, wanted: Iterable[tf.Tensor], known: Collection[str]
  ) -> tuple[set[str], list[tf.Tensor]]:
    """Walks back from the wanted tensors to the ops that are known.

    Args:
      wanted: tensors of the graph.
      known: names of ops that are run elsewhere.

    Returns:
      names of the other ops that are needed; the tensors of known ops that these read,
      in order and without constants, which each function has for itself.
    """
    ops: set[str] = set()
    border: dict[str, tf.Tensor] = {}
    stack = list(wanted)[::-1]
    while stack:
      tensor = stack.pop()
      source = self.source(tensor)
      constant = self._is_constant(source.op)
      if source.name in self._shapes:
        continue
      if source.op.name in known and not constant:
        border.setdefault(source.name, source)
      elif tensor.op.name not in ops:
        ops.add(tensor.op.name)
        stack += list(tensor.op.inputs)[::-1]
    return ops, list(border.values())

  def cut(
    self, given: Sequence[tf.Tensor], wanted: Sequence[tf.Tensor]
  ) -> tuple[Piece, bool]:
    """Cuts what computes the wanted tensors from the given ones.

    Returns:
      what adds the piece to the graph under construction: given → wanted; and whether
      an op of it calls a function, as loops and branches do.
    """
    captured: dict[str, tf.Tensor] = {
      inner.name: outer
      for outer, inner in self.graph.captures  # pyright: ignore[reportAttributeAccessIssue]
    }
    places = {tensor.name: place for place, tensor in enumerate(given)}
    known = {*places, *captured}
    self._scan()
    folded = {**self._shapes, **self._fold(self._inside(wanted, known)[0])}
    known |= folded.keys()
    inside, outside = self._inside(wanted, known)
    graph_def = self._graph_def(inside)
    direct = {
      tensor.name: self.source(tensor).name
      for tensor in wanted
      if self.source(tensor).name in known
    }

    def piece(args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      def value(name: str) -> tf.Tensor:
        if name in folded:
          return tf.constant(folded[name])
        # What is captured may be eager; an op of its own captures it here too.
        return args[places[name]] if name in places else tf.identity(captured[name])

      results = {name: tf.identity(value(source)) for name, source in direct.items()}
      rest = [tensor.name for tensor in wanted if tensor.name not in results]
      found = tf.graph_util.import_graph_def(
        graph_def,
        input_map={name: value(source) for name, source in outside.items()},
        return_elements=rest,
        name="",
      )
      results |= dict(zip(rest, found, strict=True))
      return [results[tensor.name] for tensor in wanted]

    return piece, any(map(_calls_function, graph_def.node))

  def reads(self, wanted: Sequence[tf.Tensor], given: Iterable[tf.Tensor]) -> set[str]:
    """Gives the names of those given tensors that the wanted ones are computed from."""
    names = {tensor.name for tensor in given}
    _, outside = self._inside(wanted, names)
    return names & {*outside.values(), *(self.source(t).name for t in wanted)}

  def _inside(
    self, wanted: Iterable[tf.Tensor], given: Collection[str]
  ) -> tuple[set[str], dict[str, str]]:
    """Gives the ops between, and, for each tensor read from outside, what it is."""
    ops: set[str] = set()
    outside: dict[str, str] = {}
    stack = [tensor for tensor in wanted if self.source(tensor).name not in given]
    while stack:
      op = stack.pop().op
      if op.name in ops:
        continue
      ops.add(op.name)
      for tensor in op.inputs:
        source = self.source(tensor)
        if source.name in given:
          outside[tensor.name] = source.name
        else:
          stack.append(tensor)
    return ops, outside

  def _fold(self, ops: Iterable[str]) -> dict[str, np.ndarray]:
    """Computes what ops read that depends on constants alone, by name of the tensor.

    Grappler would do it, but would also fold one layer's factors into another's.
    """
    sources = {}
    for op in map(self.graph.get_operation_by_name, ops):
      for tensor in op.inputs if not self._is_constant(op) else ():
        source = self.source(tensor)
        if self._is_foldable(source):
          sources[source.name] = source
    new = [name for name in sources if name not in self._values]
    if new:
      inside, shapes = self._inside([sources[name] for name in new], self._shapes)
      graph_def = self._graph_def(inside)
      with tf.init_scope(), tf.device("CPU:0"):
        found = tf.function(
          lambda: tf.graph_util.import_graph_def(
            graph_def,
            input_map={n: tf.constant(self._shapes[s]) for n, s in shapes.items()},
            return_elements=new,
            name="",
          ),
          autograph=False,
        ).get_concrete_function()()
      arrays = [tensor.numpy() for tensor in found]
      self._values |= dict(zip(new, arrays, strict=True))
    return {name: self._values[name] for name in sources}

  def _is_foldable(self, tensor: tf.Tensor) -> bool:
    if tensor.op.type == "Const" or not self._is_constant(tensor.op):
      return False
    size = tensor.shape.num_elements()
    numbers = (
      tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    )
    known = tensor.name in self._shapes
    # Of unknown size are axes and the like, of few numbers.
    return numbers and not known and (size is None or size <= _MOST_FOLDED)

  def _graph_def(self, ops: Collection[str]) -> tf.compat.v1.GraphDef:
    whole = self.graph.as_graph_def()
    part = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    for node in whole.node:
      if node.name in ops:
        copy = part.node.add()
        copy.CopyFrom(node)
        # Ops are pure: what waits for nothing but data is right.
        data = [name for name in node.input if not name.startswith("^")]
        del copy.input[:]
        copy.input.extend(data)
        # Where it is called it runs, with all ops that it may be colocated with.
        copy.attr.pop("_class", None)
        copy.device = ""
        _add_in_order(part)
    return part

  def _is_constant(self, op: tf.Operation) -> bool:
    """Says whether an op depends on constants and static shapes only."""
    self._scan()
    return self._constant[op.name]

  def _scan(self) -> None:
    """Looks at the ops that are new in the graph."""
    # Ops stand behind their inputs; a graph may be too deep for recursion.
    ops = self.graph.get_operations()
    for op in ops[self._num_seen :]:
      told = [_static_shape(tensor) for tensor in op.outputs]
      inputs = [self._constant.get(t.op.name, False) for t in op.inputs]
      self._constant[op.name] = (
        op.type == "Const"
        or (bool(told) and all(value is not None for value in told))
        or (bool(inputs) and all(inputs))
      )
      for tensor, value in zip(op.outputs, told, strict=True):
        if value is not None:
          self._shapes[tensor.name] = value
    self._num_seen = len(ops)


def _calls_function(node: tf.compat.v1.NodeDef) -> bool:
  values = node.attr.values()
  return any(value.HasField("func") or value.list.func for value in values)


def _add_in_order(part: tf.compat.v1.GraphDef) -> None:
  """Makes the last op, if it is a sum of three or more, a chain of sums of two.

  Such a sum begins with whatever buffer it may write to: with one that nobody else
  still needs. So its last bits would depend on the schedule, and even on time. Sums in
  functions that an op calls, as a loop does, stay as they are.
  """
  node = part.node[-1]
  if node.op != "AddN" or node.attr["T"].type == tf.variant.as_datatype_enum:
    return
  terms = list(node.input)
  node.attr["N"].i = min(2, len(terms))
  while len(terms) > 2:
    pair = part.node.add()
    pair.CopyFrom(node)
    pair.name = f"{node.name}/of_{len(terms)}"
    pair.input[:] = terms[:2]
    terms[:2] = [pair.name]
  node.input[:] = terms


def _static_shape(tensor: tf.Tensor) -> np.ndarray | None:
  """Gives what an op tells of a shape, if that is known while tracing."""
  op = tensor.op
  if op.type not in ("Shape", "ShapeN", "Size", "Rank"):
    return None
  shape = op.inputs[tensor.value_index].shape
  dtype = tensor.dtype.as_numpy_dtype
  if op.type == "Rank" and shape.rank is not None:
    return np.array(shape.rank, dtype)
  if not shape.is_fully_defined():
    return None
  sizes = np.array(shape.as_list(), dtype)
  return np.array(shape.num_elements(), dtype) if op.type == "Size" else sizes
