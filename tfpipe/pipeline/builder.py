"""Builds the graph of one step: each action of a schedule on its device, in order.

    for every action, in an order that all devices' lists agree with:
      under the device of its stage, after that device's previous action, call what
        F   computes the cell; keep what the gradient needs of it, unless R follows
        R   computes it again and keep that
        B   computes the gradient of the input
        W   computes the gradients of the weights and adds them to the sums
        BW  does both at once

So an action is one node. Nothing here knows the name of a schedule.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tfpipe.lazy import tf
from tfpipe.packed import unpack, unpack_as_node, variants
from tfpipe.pipeline import micro_batch
from tfpipe.pipeline.call import reference
from tfpipe.pipeline.cell import Cell, flat_args, make_gradients
from tfpipe.pipeline.cell_call import CellCall
from tfpipe.pipeline.clock import Clock
from tfpipe.pipeline.gradient_sums import added, by_weight
from tfpipe.pipeline.marks import Marks
from tfpipe.pipeline.step_result import Metrics, StepResult, pool, total
from tfpipe.pipeline.weight_reader import WeightReader
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, order
from tfpipe.structure import static_shape
from tfpipe.traced import call, specs, trace


class _Copy(NamedTuple):
  """A stage in one of the pipes."""

  stage: int
  pipe: int


_Place: TypeAlias = tuple[int, int]
"""(stage, micro-batch)."""


class StepBuilder:
  """Adds one step, of training or (with forwards only) of evaluation, to the graph."""

  def __init__(
    self,
    cells: Sequence[Cell],
    schedule: Schedule,
    devices: Sequence[str],
    weights: Mapping[str, tf.Variable],
    *,
    trainable: frozenset[str],
    seed_keys: Mapping[str, int],
    input_fields: Sequence[str],
    remat_layers: bool = False,
  ) -> None:
    self._cells = cells
    self._schedule = schedule
    self._devices = devices
    self._weights = weights
    self._seed_keys = seed_keys
    self._input_fields = input_fields
    self._order = order(schedule)
    self._packs = not cells[0].function.execution.whole
    self._reader = WeightReader(packs=self._packs)
    self._recomputed = {
      (a.stage, m) for a in self._order if a.kind == "R" for m in a.micro_batches
    }
    # Evaluation has no backward.
    backward = any("B" in action.kind for action in self._order)
    splits = any(action.kind == "W" for action in self._order)
    self._gradients = (
      make_gradients(cells, trainable, remat_layers=remat_layers, splits=splits)
      if backward
      else []
    )

  def keeps(self, stage: int, micro_batch: int) -> bool:
    """Says whether the gradient uses the values of the first forward."""
    return bool(self._gradients) and (stage, micro_batch) not in self._recomputed

  def moment_decays(self) -> dict[str, float]:
    """Name of each batch norm that hands out moments → decay of its averages."""
    return dict(pair for cell in self._cells for pair in cell.moment_names())

  def timed_actions(self) -> list[Action]:
    """The actions whose times a step can report, in its order: all but updates."""
    return [action for action in self._order if action.kind != "U"]

  def build(
    self,
    batch: Mapping[str, tf.Tensor],
    step: tf.Tensor,
    *,
    timed: bool = False,
    marks: Marks | None = None,
  ) -> StepResult:
    """Runs the schedule on a mini-batch; call it inside a tf.function.

    Args:
      batch: fields [batch, ...].
      step: int64 scalar, for random numbers.
      timed: whether to report when each action ran.
      marks: where each device counts the actions that it has done.
    """
    return _Step(self, batch, step, Clock() if timed else None, marks).run()


class _Step:
  """The state of one step while its graph is being built."""

  def __init__(
    self,
    builder: StepBuilder,
    batch: Mapping[str, tf.Tensor],
    step: tf.Tensor,
    clock: Clock | None,
    marks: Marks | None,
  ) -> None:
    self._b = builder
    self._step = step
    self._clock = clock
    self._marks = marks
    self._times: list[tf.Tensor] = []
    self._num = builder._schedule.num_micro_batches
    self._batch = batch
    # Handed from action to action of a device: each begins when the one before ends.
    with tf.control_dependencies([reference()] if builder._packs else []):
      self._tokens = {device: _on(device, step) for device in builder._devices}
    self._inputs: dict[_Place, list[tf.Tensor]] = {}
    self._calls: dict[_Place, list[tf.Tensor]] = {}
    self._dys: dict[_Place, list[tf.Tensor]] = {}
    self._sums: dict[_Copy, list[tf.Tensor]] = {}
    self._moments: dict[int, dict[int, list[tf.Tensor]]] = {}
    self._metrics: dict[int, Metrics] = {}
    # Losses that layers add, by micro-batch, in the order of the layers.
    self._added_losses: list[list[tf.Tensor]] = [[] for _ in range(self._num)]
    copies = [
      _Copy(stage, pipe)
      for pipe in range(len(builder._schedule.placement))
      for stage in range(len(builder._cells))
    ]
    self._feeds = {copy: self._feed(copy) for copy in copies}
    self._theta = {copy: self._read(copy) for copy in copies}
    self._keys = {copy: self._seed_keys(copy) for copy in copies}
    rows = static_shape(next(iter(batch.values())))[0] // self._num
    firsts = [m * rows for m in range(self._num)]
    self._rows = tf.unstack(tf.constant(firsts, tf.int64))

  def run(self) -> StepResult:
    # U needs no node of its own: the update depends on the sums.
    for action in self._b.timed_actions():
      self._read_clock(action)
      for m in action.micro_batches:
        device = self._device(_Copy(action.stage, action.pipe))
        with tf.device(device), tf.name_scope(scope(action, m)):
          self._act(action, m)
      self._read_clock(action)
      if self._marks:
        device = self._b._schedule.device(action)
        self._marks.add(device, self._tokens[self._b._devices[device]])
    return self._result()

  def _read_clock(self, action: Action) -> None:
    """Notes when the device is free and what has been sent to the action is there."""
    if self._clock is None:
      return
    device = self._device(_Copy(action.stage, action.pipe))
    sent = {"F": self._inputs, "B": self._dys, "BW": self._dys}.get(action.kind, {})
    places = [(action.stage, m) for m in action.micro_batches]
    arrived = [tensor for place in places for tensor in sent.get(place, [])]
    with tf.name_scope(scope(action, action.micro_batch) + "clock/"):
      after = [_on(device, tensor) for tensor in [self._tokens[device], *arrived]]
      with tf.control_dependencies(after):
        self._times.append(self._clock.read(device))
      with tf.control_dependencies(self._times[-1:]):
        self._tokens[device] = _on(device, after[0])

  def _act(self, action: Action, m: int) -> None:
    copy = _Copy(action.stage, action.pipe)
    if action.kind == "F":
      self._forward(copy, m)
    elif action.kind == "R":
      self._recompute(copy, m)
    elif action.kind == "B":
      self._input_gradient(copy, m)
    elif action.kind == "W":
      self._weight_gradient(copy, m)
    else:
      self._backward(copy, m)

  def _device(self, copy: _Copy) -> str:
    return self._b._devices[self._b._schedule.placement[copy.pipe][copy.stage]]

  def _feed(self, copy: _Copy) -> list[dict[str, tf.Tensor]]:
    """Gives the micro-batches of the batch fields that a stage reads."""
    names = self._b._cells[copy.stage].side
    if copy.stage == 0:
      names = (*self._b._input_fields, *names)
    with tf.device(self._device(copy)), tf.name_scope(f"stage{copy.stage}/split"):
      return micro_batch.split({n: self._batch[n] for n in names}, self._num)

  def _read(self, copy: _Copy) -> list[tf.Tensor]:
    """Reads a stage's weights, once for each of its copies, where they are.

    Returns:
      the bundle of them, if there are any; each for itself if they are not packed.
    """
    names = self._b._cells[copy.stage].weight_names()
    variables = [self._b._weights[name] for name in names]
    with tf.name_scope(f"stage{copy.stage}/weights"):
      return self._b._reader.read(variables, self._device(copy))

  def _seed_keys(self, copy: _Copy) -> tf.Tensor:
    names = self._b._cells[copy.stage].seed_names()
    with tf.device(self._device(copy)):
      return tf.constant([self._b._seed_keys[name] for name in names], tf.int64)

  def _args(self, copy: _Copy, m: int) -> list[tf.Tensor]:
    feed = self._feeds[copy][m]
    return flat_args(
      self._theta[copy],
      (self._keys[copy], self._step, self._rows[m]),
      self._inputs[copy.stage, m],
      {name: feed[name] for name in self._b._cells[copy.stage].side},
    )

  def _run(
    self,
    copy: _Copy,
    function: CellCall,
    values: Sequence[tf.Tensor],
    sums: Sequence[tf.Tensor] = (),
  ) -> list[tf.Tensor]:
    """Calls a function of a cell, after all that its device was given before."""
    device = self._device(copy)
    found, self._tokens[device] = function(values, self._tokens[device], sums)
    return found

  def _forward(self, copy: _Copy, m: int) -> None:
    """Calls the cell; what the gradient reads is kept if this call is for it."""
    stage = copy.stage
    function = self._b._cells[stage].function
    if stage == 0:
      feed = self._feeds[copy][m]
      self._inputs[0, m] = [feed[name] for name in self._b._input_fields]
    args = self._args(copy, m)
    if self._b.keeps(stage, m):
      flat = self._run(copy, self._b._gradients[stage].forward, args)
      self._calls[stage, m] = [*args, *flat[function.num_outputs :]]
    else:
      flat = self._run(copy, function.forward, args)
    outputs = function.outputs(flat)
    self._moments.setdefault(stage, {})[m] = outputs.moments
    self._added_losses[m] += outputs.losses
    if stage + 1 < len(self._b._cells):
      self._inputs[stage + 1, m] = outputs.tensors
    else:
      self._metrics[m] = function.pack(outputs.tensors)

  def _recompute(self, copy: _Copy, m: int) -> None:
    args = self._args(copy, m)
    kept = self._run(copy, self._b._gradients[copy.stage].recompute, args)
    self._calls[copy.stage, m] = [*args, *kept]

  def _backward(self, copy: _Copy, m: int) -> None:
    gradient = self._b._gradients[copy.stage]
    values = self._with_dys(copy, m)
    found = self._run(copy, gradient.backward, values, self._sums.get(copy, ()))
    del self._calls[copy.stage, m]
    self._dys[copy.stage - 1, m] = found[: gradient.num_dxs]
    self._sums[copy] = found[gradient.num_dxs :]

  def _input_gradient(self, copy: _Copy, m: int) -> None:
    gradient = self._b._gradients[copy.stage]
    values = self._with_dys(copy, m)
    found = self._run(copy, gradient.input_gradient, values)
    self._dys[copy.stage - 1, m] = found[: gradient.num_dxs]
    self._calls[copy.stage, m] = [*values, *found[gradient.num_dxs :]]

  def _weight_gradient(self, copy: _Copy, m: int) -> None:
    function = self._b._gradients[copy.stage].weight_gradient
    values = self._calls.pop((copy.stage, m))
    self._sums[copy] = self._run(copy, function, values, self._sums.get(copy, ()))

  def _with_dys(self, copy: _Copy, m: int) -> list[tf.Tensor]:
    dys = self._dys.pop((copy.stage, m), [])
    del self._inputs[copy.stage, m]
    return [*self._calls[copy.stage, m], *dys]

  def _result(self) -> StepResult:
    last = self._device(_Copy(len(self._b._cells) - 1, 0))
    with tf.device(last), tf.name_scope("metrics"):
      by_micro_batch = [self._metrics[m] for m in range(self._num)]
      losses = [
        total([metrics["loss"][0], *added])
        for metrics, added in zip(by_micro_batch, self._added_losses, strict=True)
      ]
      metrics = {
        name: (
          tf.reduce_sum(tf.stack([m[name][0] for m in by_micro_batch])),
          tf.reduce_sum(tf.stack([m[name][1] for m in by_micro_batch])),
        )
        for name in by_micro_batch[0]
      }
      metrics["loss"] = (tf.reduce_sum(tf.stack(losses)), metrics["loss"][1])
      return StepResult(
        self._gradient_sums(),
        metrics,
        self._pooled_moments(),
        tf.stack(losses),
        tf.reshape(tf.stack(self._times), [-1, 2]) if self._clock else None,
      )

  def _gradient_sums(self) -> Mapping[str, tf.Tensor]:
    """Gives the sums of all weights; those of a layer stay packed."""
    layers, uses = [], []
    for copy, sums in sorted(self._sums.items()):
      names = self._b._cells[copy.stage].weight_names()
      gradient = self._b._gradients[copy.stage]
      if not self._b._packs:
        places = [place for own in gradient.weights for place in own]
        uses += zip([names[place] for place in places], sums, strict=True)
        continue
      with tf.device(self._device(copy)):
        packs = unpack_as_node(sums[0], variants(len(gradient.summed))) if sums else []
      layers += [
        (tuple(names[place] for place in places), packed)
        for places, packed in zip(gradient.weights, packs, strict=True)
      ]
    if not self._b._packs:
      return added(uses, self._homes())
    return by_weight(layers, self._b._weights)

  def _homes(self) -> dict[str, str]:
    """Gives the device of each layer by its name."""
    return {
      layer.name: self._device(_Copy(stage, 0))
      for stage, cell in enumerate(self._b._cells)
      for layer in cell.layers
    }

  def _pooled_moments(self) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    pooled = {}
    for stage, by_micro_batch in self._moments.items():
      cell = self._b._cells[stage]
      given = [tensor for m in range(self._num) for tensor in by_micro_batch[m]]
      device = self._device(_Copy(stage, 0))
      with tf.device(device), tf.name_scope(f"stage{stage}/moments"):
        own = cell.function.moment_specs
        pool_all = functools.partial(_pool, own, packs=self._b._packs)
        found = call(trace(pool_all, specs(given)), given)
      names = [name for name, _ in cell.moment_names()]
      pooled |= zip(names, zip(found[::2], found[1::2], strict=True), strict=True)
    return pooled


def _pool(
  own: Sequence[tf.TensorSpec], *given: tf.Tensor, packs: bool
) -> list[tf.Tensor]:
  """Pools (mean, variance, mean, ...) of all micro-batches, one after the other."""
  size = len(own) or 1
  values = (
    [unpack(one, own) for one in given]
    if packs
    else [given[first : first + size] for first in range(0, len(given), size)]
  )
  found = []
  for place in range(0, len(own) if given else 0, 2):
    found += pool([v[place] for v in values], [v[place + 1] for v in values])
  return found


_SCOPES = {
  "F": "forward",
  "R": "recompute",
  "B": "input_gradient",
  "W": "weight_gradient",
  "BW": "backward",
}


def scope(action: Action, m: int) -> str:
  """Begins the names of what an action adds to the graph for a micro-batch."""
  return f"stage{action.stage}/micro{m}/{_SCOPES[action.kind]}/"


def _on(device: str, tensor: tf.Tensor) -> tf.Tensor:
  """Gives a tensor once it is on a device."""
  with tf.device(device):
    return tf.identity(tensor)
