"""The loop over the ticks of a schedule, in the program of all stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tfpipe.lazy import tf
from tfpipe.schedule.ticks import Ticks
from tfpipe.spmd.border import Vectors
from tfpipe.spmd.collectives import Collectives, Pairs
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.stage import Arguments, Outputs


class Carry(NamedTuple):
  """What a device has between two ticks.

  Attributes:
    x: what the stage before has handed on, by dtype.
    dy: what the stage behind has handed back, by dtype.
    kept: what forwards keep whose backwards are to come, by dtype: [slots, size].
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


class Noted(NamedTuple):
  """What a stage gives of a micro-batch, besides what it hands on.

  Attributes:
    loss: float32 scalar, the losses of its layers.
    metrics: float32 [metrics, 2]; zeros but on the last stage.
    moments: float32 [2, size].
  """

  loss: tf.Tensor
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
    self._batch = batch
    rows = network.sizes.micro_batches * network.sizes.rows
    self._first_row = tf.cast(pipeline * rows, tf.int64)

  def first(self) -> Carry:
    """Gives what a device has before the first tick."""
    net, number = self._net, self._sizes.micro_batches
    return Carry(
      x=net.inputs.zeros(),
      dy=net.gradients.zeros(),
      kept={d: tf.zeros([self._slots, s], d) for d, s in net.kept.sizes.items()},
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
    y, kept, forwards = self._switch(now.forward, self.forward(now.forward, carry))
    kept = {
      dtype: self._keep(carry.kept[dtype], vector, now.forward)
      for dtype, vector in kept.items()
    }
    carry = self._note(carry._replace(kept=kept), now.forward, forwards)
    dx, sums, backwards = self._switch(now.backward, self.backward(now.backward, carry))
    carry = self._note(carry._replace(sums=sums), now.backward, backwards)
    return carry, y, dx

  def _switch(self, m: tf.Tensor, make: Callable) -> tuple:
    """Does a stage's own work, or nothing if there is no micro-batch."""
    count = self._last + 1
    branches = [lambda k=k: make(k) for k in range(count + 1)]
    return tf.switch_case(tf.where(m < 0, count, self._stage), branches)

  def _keep(self, kept: tf.Tensor, vector: tf.Tensor, m: tf.Tensor) -> tf.Tensor:
    """Puts what a forward keeps where its backward will look for it."""
    slot = tf.math.floormod(tf.maximum(m, 0), self._slots)
    value = tf.where(m < 0, tf.gather(kept, slot), vector)
    return tf.tensor_scatter_nd_update(kept, [[slot]], value[None])

  def forward(self, m: tf.Tensor, carry: Carry) -> Callable:
    """Gives what each stage does for the forward of a micro-batch.

    With remat the last one only keeps its input, for its backward begins with it.
    """

    def branch(k: int) -> tuple[Vectors, Vectors, Noted]:
      net = self._net
      if k > self._last:
        return net.inputs.zeros(), net.kept.zeros(), self._nothing()
      inputs = self._inputs(k, m, carry.x)
      if k == self._last and net.remat == "cell":
        kept = net.kept.pack(net.stages[k].keep(inputs), k)
        return net.inputs.zeros(), kept, self._nothing()
      outputs, kept = net.stages[k].forward(inputs, self._arguments(k, m))
      last = k == self._last
      y = net.inputs.zeros() if last else net.inputs.pack(outputs.tensors, k)
      return y, net.kept.pack(kept, k), self._noted(k, outputs)

    return branch

  def backward(self, m: tf.Tensor, carry: Carry) -> Callable:
    """Gives what each stage does for the backward of a micro-batch."""

    def branch(k: int) -> tuple[Vectors, tf.Tensor, Noted]:
      net = self._net
      if k > self._last:
        return net.gradients.zeros(), carry.sums, self._nothing()
      slot = tf.math.floormod(tf.maximum(m, 0), self._slots)
      vectors = {dtype: tf.gather(own, slot) for dtype, own in carry.kept.items()}
      kept = net.kept.unpack(vectors, k)
      inputs = [] if k else self._inputs(k, m, {})
      dys = net.gradients.unpack(carry.dy, k) if k < self._last else []
      dxs, sums, outputs = net.stages[k].backward(
        kept, inputs, self._arguments(k, m), dys
      )
      dx = net.gradients.pack(dxs, k - 1) if k else net.gradients.zeros()
      added = carry.sums + net.weights.join(sums, k)
      # What any other stage computes again has been noted.
      noted = (
        self._noted(k, outputs) if outputs and k == self._last else self._nothing()
      )
      return dx, added, noted

    return branch

  def _arguments(self, k: int, m: tf.Tensor) -> Arguments:
    m = tf.maximum(m, 0)
    theta = self._net.weights.split(self._state["weights"], k)
    theta |= self._net.fixed.split(self._state["fixed"], k)
    side = self._net.stages[k].cell.side
    fields = {name: self._net.batch.part(self._batch, name, m) for name in side}
    row = self._first_row + tf.cast(m * self._sizes.rows, tf.int64)
    return Arguments(theta, fields, self._state["step"], row)

  def _inputs(self, k: int, m: tf.Tensor, arrived: Vectors) -> list[tf.Tensor]:
    if k:
      return self._net.inputs.unpack(arrived, k - 1)
    m = tf.maximum(m, 0)
    names = self._net.input_fields
    return [self._net.batch.part(self._batch, name, m) for name in names]

  def _nothing(self) -> Noted:
    return Noted(
      tf.zeros([]),
      tf.zeros([len(self._net.metrics), 2]),
      tf.zeros([2, self._net.moments.size]),
    )

  def _noted(self, k: int, outputs: Outputs) -> Noted:
    """Gives what the layers of a stage hand out besides what they hand on."""
    stage, metrics = self._net.stages[k], self._nothing().metrics
    names = [name for name, _ in stage.cell.moment_names()]
    rows = [
      self._net.moments.join(dict(zip(names, values, strict=True)), k)
      for values in (outputs.moments[::2], outputs.moments[1::2])
    ]
    loss = tf.add_n(outputs.losses) if outputs.losses else tf.zeros([])
    if k == self._last:
      found = stage.cell.function.pack(outputs.tensors)
      metrics = tf.stack([tf.stack(found[name]) for name in self._net.metrics])
      loss += metrics[self._net.metrics.index("loss"), 0]
    return Noted(loss, metrics, tf.stack(rows))

  def _note(self, carry: Carry, m: tf.Tensor, noted: Noted) -> Carry:
    """Notes what a micro-batch gave, once."""
    here = tf.equal(tf.range(self._sizes.micro_batches), m)
    moments = tf.where(here[:, None], noted.moments[:, None], 0.0)
    return carry._replace(
      losses=carry.losses + tf.where(here, noted.loss, 0.0),
      metrics=carry.metrics + noted.metrics,
      moments=carry.moments + moments,
    )
