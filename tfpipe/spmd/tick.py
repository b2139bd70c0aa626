"""The loop over the ticks of a schedule, in the program of all stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tfpipe.lazy import tf
from tfpipe.schedule.ticks import Ticks
from tfpipe.spmd import stage as stage_lib
from tfpipe.spmd.border import Vectors
from tfpipe.spmd.collectives import Collectives, Pairs
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.stage import Arguments, Outputs


class Carry(NamedTuple):
  """What a device has between two ticks.

  Attributes:
    x: what the stage before has handed on, by dtype.
    dy: what the stage behind has handed back, by dtype.
    kept: inputs of forwards whose backwards are to come, by dtype: [slots, size].
    sums: vector of gradient sums.
    losses: float32 [M], the losses of this stage in each micro-batch.
    metrics: float32 [metrics, 2], sums and weights; zeros but on the last stage.
    moments: float32 [2, M, size], means and variances of each micro-batch.
  """

  x: Vectors
  dy: Vectors
  kept: Vectors
  sums: tf.Tensor
  losses: tf.Tensor
  metrics: tf.Tensor
  moments: tf.Tensor


class _Now(NamedTuple):
  """What a device does in a tick; IDLE stands for nothing."""

  forward: tf.Tensor
  backward: tf.Tensor


class TickLoop:
  """Runs the ticks.

  Args:
    network: its stages.
    ticks: when they do what.
    collectives: how devices exchange.
    pairs: who hands on to whom, and back.
  """

  def __init__(
    self,
    network: StagedNetwork,
    ticks: Ticks,
    collectives: Collectives,
    pairs: tuple[Pairs, Pairs],
  ) -> None:
    self._net = network
    self._ticks = ticks
    self._collectives = collectives
    self._on, self._back = pairs
    self._last = network.sizes.stages - 1

  def run(
    self,
    stage: tf.Tensor,
    pipeline: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    *,
    unrolled: bool,
  ) -> Carry:
    """Runs all of them; arguments as of `Program.step`."""
    device = Device(self._net, self._ticks, stage, pipeline, state, batch)
    stages = self._last + 1
    tables = [
      tf.constant([m for row in rows for m in row])
      for rows in (self._ticks.forward, self._ticks.backward)
    ]

    def tick(number: tf.Tensor, carry: Carry) -> tuple[tf.Tensor, Carry]:
      place = number * stages + stage
      now = _Now(*(tf.gather(table, place) for table in tables))
      return number + 1, self._exchange(*device.work(now, carry))

    carry = device.first()
    if unrolled:
      for number in range(self._ticks.num_ticks):
        _, carry = tick(tf.constant(number), carry)
      return carry
    count = self._ticks.num_ticks
    _, carry = tf.while_loop(
      lambda number, _: number < count,
      tick,
      [tf.constant(0), carry],
      parallel_iterations=1,
      maximum_iterations=count,
    )
    return carry

  def _exchange(self, carry: Carry, y: Vectors, dx: Vectors) -> Carry:
    """Hands everything one stage on."""
    if not self._last:
      return carry

    def sent(vectors: Vectors, pairs: Pairs) -> Vectors:
      return {d: self._collectives.permute(v, pairs) for d, v in vectors.items()}

    return carry._replace(x=sent(y, self._on), dy=sent(dx, self._back))


class Device:
  """What a device has during all ticks, and what it does in one."""

  def __init__(
    self,
    network: StagedNetwork,
    ticks: Ticks,
    stage: tf.Tensor,
    pipeline: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
  ) -> None:
    self._net = network
    self._slots = ticks.num_slots
    self._stage = stage
    self._state = state
    self._sizes = network.sizes
    self._last = network.sizes.stages - 1
    number, rows = network.sizes.micro_batches, network.sizes.rows
    self._batch = {
      name: tf.reshape(field, [number, rows, *field.shape[1:]])
      for name, field in batch.items()
    }
    self._first_row = tf.cast(pipeline * number * rows, tf.int64)

  def first(self) -> Carry:
    """Gives what a device has before the first tick."""
    net, number = self._net, self._sizes.micro_batches
    return Carry(
      x=net.inputs.zeros(),
      dy=net.gradients.zeros(),
      kept={d: tf.zeros([self._slots, s], d) for d, s in net.inputs.sizes.items()},
      sums=tf.zeros([net.weights.size]),
      losses=tf.zeros([number]),
      metrics=tf.zeros([len(net.metrics), 2]),
      moments=tf.zeros([2, number, net.moments.size]),
    )

  def work(self, now: _Now, carry: Carry) -> tuple[Carry, Vectors, Vectors]:
    """Does what a tick holds.

    Returns:
      what the device has then, but for what is sent: outputs, and gradients of inputs.
    """
    kept = {
      dtype: self._keep(carry.kept[dtype], vector, now.forward)
      for dtype, vector in carry.x.items()
    }
    carry = carry._replace(kept=kept)
    y, noted = self._switch(now.forward, self.forward(now.forward, carry))
    carry = self._note(carry, now.forward, noted)
    dx, sums, metrics, noted = self._switch(
      now.backward, self.backward(now.backward, carry)
    )
    carry = self._note(carry, now.backward, noted)
    carry = carry._replace(sums=sums, metrics=carry.metrics + metrics)
    return carry, y, dx

  def _switch(self, m: tf.Tensor, make: Callable) -> tuple:
    """Does a stage's own work, or nothing if there is no micro-batch."""
    count = self._last + 1
    branches = [lambda k=k: make(k) for k in range(count + 1)]
    return tf.switch_case(tf.where(m < 0, count, self._stage), branches)

  def _keep(self, kept: tf.Tensor, vector: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    """Puts the input of a forward where its backward will look for it."""
    slot = tf.math.floormod(tf.maximum(m, 0), self._slots)
    value = tf.where(m < 0, tf.gather(kept, slot), vector)
    return tf.tensor_scatter_nd_update(kept, [[slot]], value[None])

  def forward(self, m: tf.Tensor, carry: Carry) -> Callable:
    """Gives what each stage does for the forward of a micro-batch.

    The last one does nothing: its backward follows at once, and begins with it.
    """

    def branch(k: int) -> tuple[Vectors, tuple[tf.Tensor, tf.Tensor]]:
      if k >= self._last:
        return self._net.inputs.zeros(), self._nothing()
      given = self._arguments(k, m)
      inputs = self._inputs(k, m, carry.x)
      outputs = self._net.stages[k].forward(inputs, given)
      return self._net.inputs.pack(outputs.tensors, k), self._noted(k, outputs)

    return branch

  def backward(self, m: tf.Tensor, carry: Carry) -> Callable:
    """Gives what each stage does for the backward of a micro-batch."""
    nothing = tf.zeros([len(self._net.metrics), 2])

    def branch(k: int) -> tuple:
      net = self._net
      if k > self._last:
        return net.gradients.zeros(), carry.sums, nothing, self._nothing()
      slot = tf.math.floormod(tf.maximum(m, 0), self._slots)
      kept = {dtype: tf.gather(own, slot) for dtype, own in carry.kept.items()}
      inputs = self._inputs(k, m, kept)
      dys: list[tf.Tensor] = []
      if k < self._last:
        inputs = stage_lib.tied(inputs, carry.dy)
        dys = net.gradients.unpack(carry.dy, k)
      dxs, sums, outputs = net.stages[k].backward(inputs, self._arguments(k, m), dys)
      sent = net.gradients.pack(dxs, k - 1) if k else net.gradients.zeros()
      added = carry.sums + net.weights.join(sums, k)
      if k < self._last:
        return sent, added, nothing, self._nothing()
      found = net.stages[k].cell.function.pack(outputs.tensors)
      metrics = tf.stack([tf.stack(found[name]) for name in net.metrics])
      total, moments = self._noted(k, outputs)
      loss = metrics[net.metrics.index("loss"), 0]
      return sent, added, metrics, (total + loss, moments)

    return branch

  def _arguments(self, k: int, m: tf.Tensor) -> Arguments:
    m = tf.maximum(m, 0)
    theta = self._net.weights.split(self._state["weights"], k)
    theta |= self._net.fixed.split(self._state["fixed"], k)
    side = self._net.stages[k].cell.side
    fields = {name: tf.gather(self._batch[name], m) for name in side}
    row = self._first_row + tf.cast(m * self._sizes.rows, tf.int64)
    return Arguments(theta, fields, self._state["step"], row)

  def _inputs(self, k: int, m: tf.Tensor, arrived: Vectors) -> list[tf.Tensor]:
    if k:
      return self._net.inputs.unpack(arrived, k - 1)
    return [
      tf.gather(self._batch[name], tf.maximum(m, 0)) for name in self._net.input_fields
    ]

  def _nothing(self) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.zeros([]), tf.zeros([2, self._net.moments.size])

  def _noted(self, k: int, outputs: Outputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives the losses that the layers of a stage add, and the moments of its norms."""
    names = [name for name, _ in self._net.stages[k].cell.moment_names()]
    rows = [
      self._net.moments.join(dict(zip(names, values, strict=True)), k)
      for values in (outputs.moments[::2], outputs.moments[1::2])
    ]
    loss = tf.add_n(outputs.losses) if outputs.losses else tf.zeros([])
    return loss, tf.stack(rows)

  def _note(
    self, carry: Carry, m: tf.Tensor, noted: tuple[tf.Tensor, tf.Tensor]
  ) -> Carry:
    """Notes what a micro-batch gave, once."""
    loss, moments = noted
    here = tf.equal(tf.range(self._sizes.micro_batches), m)
    return carry._replace(
      losses=carry.losses + tf.where(here, loss, 0.0),
      moments=carry.moments + tf.where(here[:, None], moments[:, None], 0.0),
    )
