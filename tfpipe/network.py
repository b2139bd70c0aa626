"""The layers of a run as numbers: what each costs, keeps and reads.

Asked of Params and `FPropMeta` alone, without TensorFlow. Of layers that differ in
nothing but their names one is asked: deep networks have thousands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tfpipe import model, tied_weights
from tfpipe.cost import ArraySpec, LayerCost, in_dtype
from tfpipe.memory import LayerState
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams, Params
from tfpipe.spelling import nearest

__all__ = ["Network"]


class Network:
  """The network of a run.

  Attributes:
    names: of the layers, in order.
    states: what each layer keeps between steps, and reads.
    unsplit: layers with a backward that gives both gradients at once (their class says
      `SPLITS_BACKWARD = False`, or that of a layer in them).

  Raises:
    ValueError, TypeError, AttributeError: a field of the Params is not allowed.
  """

  def __init__(self, p: Params) -> None:
    model.check(p)
    self._params = p
    self._task = p.task.Instantiate()
    learner = p.task.learner.Instantiate()
    with _named(f"{type(self._task).__name__}.Layers()"):
      self._layers = self._task.Layers()
    _check_layers(self._task, self._layers)
    _check_field_names(self._task, "INPUT_FIELDS", least=1)
    self.names = tuple(layer.name for layer in self._layers)
    self._keys = [_key(layer) for layer in self._layers]
    self._costs: dict[tuple[str, int], tuple[LayerCost, ...]] = {}
    states: dict[Any, tuple[LayerState, bool]] = {}
    weights: dict[Any, Mapping[str, Any]] = {}
    for key, layer in zip(self._keys, self._layers, strict=True):
      if key not in states:
        # Instantiating checks the Params, which FPropMeta takes for granted.
        made = layer.Instantiate()
        weights[key] = made.weights()
        states[key] = _state(made, learner), _splits(made)
    tied_weights.check(
      {name: weights[key] for name, key in zip(self.names, self._keys, strict=True)}
    )
    self.states = tuple(states[key][0] for key in self._keys)
    self.states = (
      dataclasses.replace(
        self.states[0], fields=self.states[0].fields | {*self._task.INPUT_FIELDS}
      ),
      *self.states[1:],
    )
    self.unsplit = tuple(
      name
      for name, key in zip(self.names, self._keys, strict=True)
      if not states[key][1]
    )

  def batch_size(self, owner: str = "input") -> int:
    """Returns the rows of a mini-batch of `input` or `eval_input`."""
    return next(iter(self._specs[owner].values())).shape[0]

  @cached_property
  def micro_batches(self) -> tuple[int, ...]:
    """Numbers of micro-batches that divide the batches of training and evaluation."""
    common = math.gcd(*map(self.batch_size, self._specs))
    return tuple(number for number in range(1, common + 1) if common % number == 0)

  @cached_property
  def _specs(self) -> dict[str, dict[str, ArraySpec]]:
    """The fields of a mini-batch, of each input there is."""
    found = {}
    for owner in ("input", "eval_input"):
      source = self._params.Get(owner)
      with model.naming(owner):
        if source:
          found[owner] = source.Instantiate().specs()
    return found

  def field_bytes(self, num_micro_batches: int) -> dict[str, int]:
    """Returns the bytes of each field of a micro-batch of the training input."""
    fields = self._micro_batch("input", num_micro_batches)
    return {name: spec.bytes for name, spec in fields.items()}

  def costs(
    self, num_micro_batches: int, owner: str = "input"
  ) -> tuple[LayerCost, ...]:
    """Returns the cost of every layer for one micro-batch of `input` or `eval_input`.

    Raises:
      ValueError: the layers do not fit each other or the input's fields, or a batch is
        not a multiple of the micro-batches.
    """
    key = owner, num_micro_batches
    if key not in self._costs:
      micro_batch = self._micro_batch(owner, num_micro_batches)
      task, source = self._params.task, self._params.Get(owner).Instantiate()
      try:
        self._costs[key] = self._ask(micro_batch)
      except ValueError:
        _check_shapes(task, owner, source)
        raise
      _check_fits(task, owner, source)
      self._check_segments(owner, micro_batch)
    return self._costs[key]

  def _check_segments(self, owner: str, micro_batch: Mapping[str, ArraySpec]) -> None:
    """Refuses rows of several texts for layers that would mix them."""
    readers = [
      layer for layer in self._layers if "segment_ids" in layer.cls.SIDE_INPUTS
    ]
    if "segment_ids" in micro_batch and not readers:
      hint = "; set task.packed=True" if "packed" in self._params.task else ""
      raise ValueError(
        f"{owner} gives segment_ids, for its rows hold several texts, but no layer "
        f"reads them: attention would mix the texts{hint}"
      )

  def _micro_batch(self, owner: str, number: int) -> dict[str, ArraySpec]:
    self._check_divides(number)
    return {
      name: ArraySpec((spec.shape[0] // number, *spec.shape[1:]), spec.dtype)
      for name, spec in self._specs[owner].items()
    }

  def _check_divides(self, number: int) -> None:
    """Refuses what does not divide all batches, and names what does."""
    for owner in self._specs:
      rows = self.batch_size(owner)
      if rows % number:
        best = min(self.micro_batches, key=lambda m: abs(m - number))
        raise ValueError(
          f"pipeline.num_micro_batches={number} does not divide {owner}.batch_size="
          f"{rows}; the nearest number that does is {best}"
        )

  def _ask(self, micro_batch: Mapping[str, ArraySpec]) -> tuple[LayerCost, ...]:
    names, dtype = self._task.INPUT_FIELDS, self._params.pipeline.compute_dtype
    _check_fields("the task", names, micro_batch)
    inputs: Any = in_dtype(tuple(micro_batch[name] for name in names), dtype)
    known: dict[Any, LayerCost] = {}
    costs = []
    for key, layer in zip(self._keys, self._layers, strict=True):
      # Of any other nest than one array, its text.
      key = key, inputs if isinstance(inputs, ArraySpec) else repr(inputs)
      if key not in known:
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        if layer.cls.SIDE_INPUTS:
          _check_fields(f"layer {layer.name!r}", layer.cls.SIDE_INPUTS, micro_batch)
          side = {name: micro_batch[name] for name in layer.cls.SIDE_INPUTS}
          args = (*args, NestedMap(side))
        cost = _cost(layer, args)
        border = in_dtype(cost.out_shapes, dtype)
        known[key] = dataclasses.replace(cost, out_shapes=border)
      costs.append(dataclasses.replace(known[key], name=layer.name))
      inputs = costs[-1].out_shapes
    if not isinstance(inputs, dict) or "loss" not in inputs:
      raise ValueError(
        f"the last layer, {self.names[-1]!r}, must return metrics with 'loss' among "
        "them"
      )
    return tuple(costs)


def _cost(layer: Params, args: Sequence[Any]) -> LayerCost:
  """Asks a layer for its cost; what it refuses names it."""
  try:
    with _named(f"layer {layer.name!r}, {layer.cls.__name__}.FPropMeta"):
      cost = layer.cls.FPropMeta(layer, *args)
  except ValueError as error:
    if re.search(rf"\b{re.escape(layer.name)}\b", str(error)):
      raise
    raise ValueError(f"layer {layer.name!r}: {error}") from error
  if not isinstance(cost, LayerCost):
    raise ValueError(
      f"layer {layer.name!r}: {layer.cls.__name__}.FPropMeta returned {cost!r}: must "
      "be a LayerCost, as Layer.Cost makes"
    )
  return cost


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
  """Says in whose code, and on which line of it, there is a mistake.

  What refuses a value by a ValueError names it itself.
  """
  try:
    yield
  except ValueError:
    raise
  except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in frames if f.filename != __file__), frames[-1])
    line = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    reason = f"{type(error).__name__}: {error}"
    raise ValueError(f"{what}, {line}: {reason}") from error


def _key(layer: Params) -> tuple:
  """Gives what layers with equal Params but for their names have in common."""
  return tuple((k, _hashable(value)) for k, value in layer.IterParams() if k != "name")


def _hashable(value: Any) -> Any:
  if isinstance(value, Params):
    return type(value), tuple((k, _hashable(item)) for k, item in value.IterParams())
  if isinstance(value, (list, tuple)):
    return type(value), tuple(_hashable(item) for item in value)
  if isinstance(value, dict):
    pairs = tuple((_hashable(key), _hashable(item)) for key, item in value.items())
    return type(value), pairs
  if value is None or isinstance(value, (bool, int, float, str, type)):
    return type(value), value  # 1, 1.0 and True are equal
  return type(value), id(value)


def _state(layer: Any, learner: Any) -> LayerState:
  weights = layer.weights()
  own = {name: w for name, w in weights.items() if not w.tied_to}
  trained = {name: w.shape for name, w in own.items() if w.trainable}
  kinds = learner.state_bytes(trained)
  tied: dict[str, int] = {}
  for weight in weights.values():
    if weight.tied_to:
      owner = weight.tied_to.partition("/")[0]
      tied[owner] = tied.get(owner, 0) + _bytes(weight.shape)
  return LayerState(
    weights=sum(_bytes(weight.shape) for weight in own.values()),
    gradients=sum(_bytes(w.shape) for w in weights.values() if w.trainable),
    slots=kinds["slots"],
    averages=kinds["ema"],
    sums=kinds["accumulators"],
    tied=tied,
    fields=frozenset(layer.SIDE_INPUTS),
  )


def _bytes(shape: Sequence[int]) -> int:
  return 4 * math.prod(shape)  # weights are float32


def _splits(layer: Any) -> bool:
  return getattr(layer, "SPLITS_BACKWARD", True) and all(
    _splits(child) for child in layer.children()
  )


def _check_fits(task: Params, owner: str, source: Any) -> None:
  """Refuses sizes that the task and an input both have, and the layers cannot see."""
  for name in ("num_classes", "vocab_size"):
    needed = getattr(source, name, 0)
    if name in task and task.Get(name) < needed:
      raise ValueError(
        f"task.{name}={task.Get(name)}: must be at least the {needed} of {owner}"
      )
  _check_same(task, owner, source, "image_size")


def _check_shapes(task: Params, owner: str, source: Any) -> None:
  """Says what the user calls a size that the layers have found not to fit."""
  for name in ("image_size", "channels"):
    _check_same(task, owner, source, name)
  if "sequence_length" in task and "seq_len" in source.params:
    most, length = task.sequence_length, source.params.seq_len
    if most < length:
      raise ValueError(
        f"task.sequence_length={most}: must be at least {length}, as {owner}.seq_len"
      )


def _check_same(task: Params, owner: str, source: Any, name: str) -> None:
  if name in task and name in source.params:
    mine, given = task.Get(name), source.params.Get(name)
    if mine != given:
      raise ValueError(f"task.{name}={mine!r}: must be {given!r}, as {owner}.{name}")


def _check_layers(task: Any, layers: Any) -> None:
  """Refuses what is no list of layers with names of their own."""
  owner = f"{type(task).__name__}.Layers()"
  if not isinstance(layers, (list, tuple)) or not layers:
    found = f"a {type(layers).__name__}" if layers else repr(layers)
    raise ValueError(
      f"{owner} returned {found}: must be a list of the Params of at least one layer"
    )
  seen: set[str] = set()
  for index, layer in enumerate(layers):
    cls = layer.cls if isinstance(layer, InstantiableParams) else None
    if not hasattr(cls, "FPropMeta"):
      found = f"the Params of {cls!r}" if cls else f"a {type(layer).__name__}"
      raise ValueError(f"{owner}[{index}] is {found}: must be the Params of a layer")
    if not isinstance(layer.name, str) or not layer.name:
      raise ValueError(
        f"{owner}[{index}].name={layer.name!r}: must be a text, and not empty"
      )
    if layer.name in seen:
      raise ValueError(f"two layers of the task are named {layer.name!r}")
    seen.add(layer.name)
    _check_field_names(layer.cls, "SIDE_INPUTS", least=0)


def _check_field_names(owner: Any, attribute: str, least: int) -> None:
  """Refuses what is no tuple of names: a text would be taken letter by letter."""
  names = getattr(owner, attribute)
  cls = owner if isinstance(owner, type) else type(owner)
  fits = isinstance(names, (tuple, list)) and len(names) >= least
  if not fits or not all(isinstance(name, str) and name for name in names):
    hint = f"; did you mean ({names!r},)?" if isinstance(names, str) else ""
    raise ValueError(
      f"{cls.__name__}.{attribute}={names!r}: must be a tuple of names of fields of "
      f"the batch{', at least one' if least else ''}{hint}"
    )


def _check_fields(
  owner: str, names: Sequence[str], batch: Mapping[str, ArraySpec]
) -> None:
  for name in names:
    if name not in batch:
      raise ValueError(
        f"{owner} reads {name!r}; the input gives {', '.join(batch)}"
        f"{nearest(name, batch)}"
      )
