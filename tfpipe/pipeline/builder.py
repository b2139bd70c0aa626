"""Builds the graph of one step: each action of a schedule on its device, in order.

    for every action, in an order that all devices' lists agree with:
      under the device of its stage, after that device's previous action:
        F   call the cell; keep what the gradient needs of it, unless R follows
        R   call it again and keep that
        B   compute the gradient of the input
        W   compute the gradients of the weights and add them to the sums
        BW  both at once

Nothing here knows the name of a schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from tfpipe.lazy import tf
from tfpipe.pipeline import micro_batch
from tfpipe.pipeline.cell import Cell, CellOutputs, flat_args, make_gradients
from tfpipe.pipeline.clock import Clock
from tfpipe.pipeline.step_result import Metrics, StepResult, accumulate, pool, total
from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, order
from tfpipe.structure import static_shape

_Nest = TypeVar("_Nest")


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
  ) -> None:
    self._cells = cells
    self._schedule = schedule
    self._devices = devices
    self._weights = weights
    self._seed_keys = seed_keys
    self._input_fields = input_fields
    self._order = order(schedule)
    self._recomputed = {
      (a.stage, m) for a in self._order if a.kind == "R" for m in a.micro_batches
    }
    # Evaluation has no backward.
    backward = any("B" in action.kind for action in self._order)
    self._gradients = make_gradients(cells, trainable) if backward else []

  def keeps(self, action: Action, micro_batch: int) -> bool:
    """Says whether a forward is the one whose values the gradient uses."""
    again = (action.stage, micro_batch) in self._recomputed
    return bool(self._gradients) and (action.kind == "R" or not again)

  def moment_decays(self) -> dict[str, float]:
    """Name of each batch norm that hands out moments → decay of its averages."""
    return dict(pair for cell in self._cells for pair in cell.moment_names())

  def timed_actions(self) -> list[Action]:
    """The actions whose times a step can report, in its order: all but updates."""
    return [action for action in self._order if action.kind != "U"]

  def build(
    self, batch: Mapping[str, tf.Tensor], step: tf.Tensor, *, timed: bool = False
  ) -> StepResult:
    """Runs the schedule on a mini-batch; call it inside a tf.function.

    Args:
      batch: fields [batch, ...].
      step: int64 scalar, for random numbers.
      timed: whether to report when each action ran.
    """
    return _Step(self, batch, step, Clock() if timed else None).run()


class _Step:
  """The state of one step while its graph is being built."""

  def __init__(
    self,
    builder: StepBuilder,
    batch: Mapping[str, tf.Tensor],
    step: tf.Tensor,
    clock: Clock | None,
  ) -> None:
    self._b = builder
    self._step = step
    self._clock = clock
    self._times: list[tf.Tensor] = []
    self._num = builder._schedule.num_micro_batches
    self._batch = batch
    self._last: dict[str, list[tf.Operation]] = {d: [] for d in builder._devices}
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
    self._accumulate = tf.function(accumulate, autograph=False)

  def run(self) -> StepResult:
    # U needs no node of its own: the update depends on the sums.
    for action in self._b.timed_actions():
      self._read_clock(action)
      for m in action.micro_batches:
        with self._place(action, m):
          self._run(action, m)
      self._read_clock(action)
    return self._result()

  def _read_clock(self, action: Action) -> None:
    """Notes when the device is free and what has been sent to the action is there."""
    if self._clock is None:
      return
    device = self._device(_Copy(action.stage, action.pipe))
    sent = {"F": self._inputs, "B": self._dys, "BW": self._dys}.get(action.kind, {})
    places = [(action.stage, m) for m in action.micro_batches]
    arrived = [tensor for place in places for tensor in sent.get(place, [])]
    scope = tf.name_scope(_scope(action, action.micro_batch) + "clock/")
    with tf.device(device), scope:
      after = [*self._last[device], *_handed_on(arrived)]
      with tf.control_dependencies(after):
        self._times.append(self._clock.read())
    self._last[device] = [self._times[-1].op]

  def _run(self, action: Action, m: int) -> None:
    copy = _Copy(action.stage, action.pipe)
    if action.kind == "F":
      self._forward(copy, m, keeps=self._b.keeps(action, m))
    elif action.kind == "R":
      self._call(copy, m, keeps=True)
    elif action.kind == "B":
      self._input_gradient(copy, m)
    elif action.kind == "W":
      self._weight_gradient(copy, m)
    else:
      self._backward(copy, m)

  @contextlib.contextmanager
  def _place(self, action: Action, m: int) -> Iterator[None]:
    device = self._device(_Copy(action.stage, action.pipe))
    with (
      tf.device(device),
      tf.control_dependencies(self._last[device]),
      tf.name_scope(_scope(action, m)),
    ):
      yield

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
    """Reads a stage's weights, once for each of its copies."""
    names = self._b._cells[copy.stage].weight_names()
    with tf.device(self._device(copy)), tf.name_scope(f"stage{copy.stage}/weights"):
      return [tf.identity(self._b._weights[name].read_value()) for name in names]

  def _seeds(self, stage: int, m: int) -> tf.Tensor:
    names = self._b._cells[stage].seed_names()
    size = static_shape(next(iter(self._batch.values())))[0] // self._num
    keys = tf.constant([self._b._seed_keys[name] for name in names], tf.int64)
    rest = tf.stack([self._step, tf.constant(m * size, tf.int64)])
    rows = tf.tile(rest[None], [len(names), 1])
    return tf.concat([keys[:, None], rows], axis=1)

  def _call(self, copy: _Copy, m: int, *, keeps: bool) -> CellOutputs:
    """Calls the cell; what the gradient reads is kept if this call is for it."""
    cell = self._b._cells[copy.stage]
    feed = self._feeds[copy][m]
    side = {name: feed[name] for name in cell.side}
    seeds, inputs, side = _handed_on(
      (self._seeds(copy.stage, m), self._inputs[copy.stage, m], side)
    )
    args = flat_args(self._theta[copy], seeds, inputs, side)
    if keeps:
      flat = self._b._gradients[copy.stage].forward(args)
      self._calls[copy.stage, m] = [*args, *flat[cell.function.num_outputs :]]
    else:
      flat = cell.function.forward(args)
    outputs = cell.function.outputs(flat)
    self._done(copy, [*outputs.tensors, *outputs.losses])
    return outputs

  def _done(self, copy: _Copy, tensors: Sequence[tf.Tensor]) -> None:
    """Lets the device's next action wait for these tensors."""
    # The backward of a frozen stage may have none: then the chain stays as it is.
    if tensors:
      self._last[self._device(copy)] = [t.op for t in _handed_on(tensors)]

  def _forward(self, copy: _Copy, m: int, *, keeps: bool) -> None:
    stage = copy.stage
    if stage == 0:
      feed = self._feeds[copy][m]
      self._inputs[0, m] = [feed[name] for name in self._b._input_fields]
    outputs = self._call(copy, m, keeps=keeps)
    self._moments.setdefault(stage, {})[m] = outputs.moments
    self._added_losses[m] += outputs.losses
    if stage + 1 < len(self._b._cells):
      self._inputs[stage + 1, m] = outputs.tensors
    else:
      self._metrics[m] = self._b._cells[stage].function.out.pack(outputs.tensors)

  def _backward(self, copy: _Copy, m: int) -> None:
    gradient = self._b._gradients[copy.stage]
    found = gradient.backward(self._with_dys(copy, m))
    dxs, dweights = found[: gradient.num_dxs], found[gradient.num_dxs :]
    del self._calls[copy.stage, m]
    self._dys[copy.stage - 1, m] = dxs
    self._done(copy, [*dxs, *self._add(copy, dweights)])

  def _input_gradient(self, copy: _Copy, m: int) -> None:
    gradient = self._b._gradients[copy.stage]
    values = self._with_dys(copy, m)
    found = gradient.input_gradient(values)
    self._dys[copy.stage - 1, m] = found[: gradient.num_dxs]
    # W waits for its turn in what it gets from here.
    self._calls[copy.stage, m] = [*values, *found[gradient.num_dxs :]]
    self._done(copy, found)

  def _weight_gradient(self, copy: _Copy, m: int) -> None:
    values = _handed_on(self._calls.pop((copy.stage, m)))
    found = self._b._gradients[copy.stage].weight_gradient(values)
    self._done(copy, self._add(copy, found))

  def _with_dys(self, copy: _Copy, m: int) -> list[tf.Tensor]:
    dys = self._dys.pop((copy.stage, m), [])
    del self._inputs[copy.stage, m]
    return [*self._calls[copy.stage, m], *_handed_on(dys)]

  def _add(self, copy: _Copy, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a micro-batch's weight gradients to the stage's one buffer per weight.

    Returns:
      a tensor that is there when all have been added; none if there are no gradients.
    """
    if not gradients:
      return []
    *self._sums[copy], end = self._accumulate(self._sums.get(copy), list(gradients))
    return [end]

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
          total([m[name][0] for m in by_micro_batch]),
          total([m[name][1] for m in by_micro_batch]),
        )
        for name in by_micro_batch[0]
      }
      metrics["loss"] = (total(losses), metrics["loss"][1])
      return StepResult(
        self._gradient_sums(),
        metrics,
        self._pooled_moments(),
        tf.stack(losses),
        tf.reshape(tf.stack(self._times), [-1, 2]) if self._clock else None,
      )

  def _gradient_sums(self) -> dict[str, tf.Tensor]:
    """Adds the contributions of all uses of a weight, in layer order, on its device."""
    uses: dict[str, list[tf.Tensor]] = {}
    for copy, sums in sorted(self._sums.items()):
      names = self._b._cells[copy.stage].weight_names()
      places = self._b._gradients[copy.stage].weights
      for place, value in zip(places, sums, strict=True):
        uses.setdefault(names[place], []).append(value)
    sums = {}
    for name, values in uses.items():
      with tf.device(self._b._weights[name].device):
        sums[name] = total(values)
    return sums

  def _pooled_moments(self) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    pooled = {}
    for stage, by_micro_batch in self._moments.items():
      names = self._b._cells[stage].moment_names()
      flats = [by_micro_batch[m] for m in range(self._num)]
      device = self._device(_Copy(stage, 0))
      with tf.device(device), tf.name_scope(f"stage{stage}/moments"):
        for i, (name, _) in enumerate(names):
          pooled[name] = pool(
            [flat[2 * i] for flat in flats], [flat[2 * i + 1] for flat in flats]
          )
    return pooled


_SCOPES = {
  "F": "forward",
  "R": "recompute",
  "B": "input_gradient",
  "W": "weight_gradient",
  "BW": "backward",
}


def _scope(action: Action, m: int) -> str:
  return f"stage{action.stage}/micro{m}/{_SCOPES[action.kind]}/"


def _handed_on(nest: _Nest) -> _Nest:
  """Passes each tensor through an op of its own, in the control dependencies in scope.

  When TensorFlow inlines a call, control dependencies of it and on it are lost, and so
  is the schedule. An action waits in its inputs and is waited for by its outputs.
  """
  return tf.nest.map_structure(tf.identity, nest, expand_composites=True)
