"""One training step as one program, which every device runs with its own number.

Device number n is stage n mod K of pipeline n div K. The ticks of the schedule are one
loop: in each, a stage does its forward and its backward, if it has any, and all devices
exchange what they made. Which cell that is, only the branches of two `switch_case` know
(Xu et al., "GSPMD", arXiv:2105.04663, section 3.3, stack equal stages instead; here
they may differ).

The program knows no variables and no device. What it is called with decides whether it
runs on TPU cores, on logical CPUs, or is compiled for one core to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tfpipe.lazy import tf
from tfpipe.optimizers.learner import Learner
from tfpipe.schedule.ticks import Ticks
from tfpipe.spmd.collectives import Collectives, Groups, Pairs
from tfpipe.spmd.flat_update import FlatUpdate
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.tick import TickLoop

COUNTERS = ("step", "updates", "skips")
"""Entries of the state that are int64 scalars: mini-batches seen, updates, and skipped
ones in a row."""


class Program:
  """The training step of a network on R pipelines of K devices.

  The state of a device is a dict: `weights`, `fixed` and `slots`, vectors of its stage
  in the layout of that name, and COUNTERS.

  Args:
    network: cut into K stages.
    ticks: when each stage does what.
    learner: how it learns; nothing of its state is used.
    num_pipelines: R, how many mini-batches of the network's size are one.

  Attributes:
    num_replicas: R·K.
    layouts: of the three vectors.

  Raises:
    ValueError: network and ticks do not fit, or cannot run so.
  """

  def __init__(
    self,
    network: StagedNetwork,
    ticks: Ticks,
    learner: Learner,
    num_pipelines: int = 1,
  ) -> None:
    _check(network, ticks)
    if num_pipelines < 1:
      raise ValueError(f"num_pipelines={num_pipelines}: must be at least 1")
    self.network = network
    self.ticks = ticks
    self._update = FlatUpdate(learner, network.weights, network.l2_names())
    self._num_pipelines = num_pipelines
    self._stages = network.sizes.stages
    self.num_replicas = num_pipelines * self._stages
    self.layouts = {
      "weights": network.weights,
      "fixed": network.fixed,
      "slots": self._update.slots,
    }

  def first_state(self) -> list[dict[str, np.ndarray]]:
    """Gives the state that each device begins with."""
    values = self.network.first_values()
    values |= self._update.first_slots(values)
    vectors = {name: layout.pack(values) for name, layout in self.layouts.items()}
    counters = {name: np.zeros([], np.int64) for name in COUNTERS}
    return [
      {name: rows[n % self._stages] for name, rows in vectors.items()} | counters
      for n in range(self.num_replicas)
    ]

  def step(
    self,
    collectives: Collectives,
    replica: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    *,
    unrolled: bool = False,
  ) -> dict:
    """Trains on a mini-batch, in the graph under construction.

    Args:
      collectives: how devices exchange.
      replica: int32 scalar, the number of this one.
      state: of this device.
      batch: fields [rows, ...] of the mini-batch of this device's pipeline.
      unrolled: write all ticks out instead of a loop, for a look at what one stage does
        if `replica` is a constant.

    Returns:
      dict of `state`, the new one; `gradients`: vector of the gradients of the sum of
      the loss over all pipelines, for this stage's weights; and, of all devices
      together, `metrics`: float32 [metrics, 2], sum and weight of each, in the order of
      the network's; `micro_batch_losses`: float32 [M], sums; `finite`; `update`.
    """
    stage = tf.math.floormod(replica, self._stages)
    pipeline = replica // self._stages
    loop = TickLoop(self.network, self.ticks, collectives, self._pairs())
    carry = loop.run(stage, pipeline, state, batch, unrolled=unrolled)

    def everywhere(value: tf.Tensor) -> tf.Tensor:
      return collectives.sum(value, [list(range(self.num_replicas))])

    losses, metrics = everywhere(carry.losses), everywhere(carry.metrics)
    place = self.network.metrics.index("loss")
    metrics = tf.tensor_scatter_nd_update(
      metrics, [[place, 0]], [tf.reduce_sum(losses)]
    )
    moments = self._pool(collectives, carry.moments)
    wrong = tf.reduce_sum(tf.cast(~tf.math.is_finite(moments), tf.float32))
    wrong = everywhere(wrong[None])[0]
    finite = (wrong <= 0) & tf.reduce_all(tf.math.is_finite(losses))
    sums = self._summed(collectives, stage, carry.sums)
    weight = tf.where(finite, metrics[place, 1], float("nan"))
    new, report = self._update.run(
      stage, state, sums, weight, lambda x: collectives.sum(x, self._pipelines())
    )
    moves = finite & report["applied"]
    new |= {
      "fixed": self._moved(stage, state["fixed"], moments, moves),
      "step": state["step"] + 1,
    }
    return {
      "state": new,
      "gradients": sums,
      "metrics": metrics,
      "micro_batch_losses": losses,
      "finite": finite,
      "update": report,
    }

  def _pairs(self) -> tuple[Pairs, Pairs]:
    """Says who hands on to whom: forwards, and back."""
    on = [(n, n + 1) for n in range(self.num_replicas) if (n + 1) % self._stages]
    return on, [(after, before) for before, after in on]

  def _pipelines(self) -> Groups:
    """Lists the devices of each pipeline."""
    count = self._stages
    return [
      list(range(first, first + count)) for first in range(0, self.num_replicas, count)
    ]

  def _copies(self) -> Groups:
    """Lists the devices of each stage."""
    return [
      list(range(stage, self.num_replicas, self._stages))
      for stage in range(self._stages)
    ]

  def _summed(
    self, collectives: Collectives, stage: tf.Tensor, sums: tf.Tensor
  ) -> tf.Tensor:
    """Adds up gradients over the copies of a stage, and of tied weights over stages."""
    layout = self.network.weights
    if self._num_pipelines > 1:
      sums = collectives.sum(sums, self._copies())
    shared = layout.shared()
    if not shared:
      return sums

    def part(k: int) -> tf.Tensor:
      own = layout.split(sums, k)
      found = [own[n] if n in own else tf.zeros(s) for n, s in shared.items()]
      return tf.concat([tf.reshape(value, [-1]) for value in found], axis=0)

    total = collectives.sum(self._switch(stage, part), self._pipelines())
    ends = np.cumsum([int(np.prod(shape)) for shape in shared.values()])
    parts = tf.split(total, np.diff([0, *ends]))

    def whole(k: int) -> tf.Tensor:
      own = layout.split(sums, k)
      for (name, shape), value in zip(shared.items(), parts, strict=True):
        own |= {name: tf.reshape(value, shape)} if name in own else {}
      return layout.join(own, k)

    return self._switch(stage, whole)

  def _pool(self, collectives: Collectives, rows: tf.Tensor) -> tf.Tensor:
    """Gives mean and variance over the whole mini-batch, of all its micro-batches.

    Args:
      collectives: how devices exchange.
      rows: [2, M, size], means and variances of each micro-batch.

    Returns:
      float32 [2, size].
    """

    def mean(values: tf.Tensor) -> tf.Tensor:
      own = tf.reduce_mean(values, axis=0)
      if self._num_pipelines == 1:
        return own
      return collectives.sum(own, self._copies()) / self._num_pipelines

    center = mean(rows[0])
    return tf.stack(
      [center, mean(rows[1] + tf.math.squared_difference(rows[0], center))]
    )

  def _moved(
    self, stage: tf.Tensor, fixed: tf.Tensor, moments: tf.Tensor, moves: tf.Tensor
  ) -> tf.Tensor:
    """Steps the moving statistics of a stage."""
    network = self.network

    def new(k: int) -> tf.Tensor:
      values = network.fixed.split(fixed, k)
      pooled = [network.moments.split(row, k) for row in tf.unstack(moments)]
      for name, decay in network.stages[k].cell.moment_names():
        for kind, row in zip(("moving_mean", "moving_variance"), pooled, strict=True):
          old = values[f"{name}/{kind}"]
          values[f"{name}/{kind}"] = old + (1.0 - decay) * (row[name] - old)
      return network.fixed.join(values, k)

    return tf.where(moves, self._switch(stage, new), fixed)

  def _switch(self, stage: tf.Tensor, make: Callable[[int], tf.Tensor]) -> tf.Tensor:
    branches = [lambda k=k: make(k) for k in range(self._stages)]
    return tf.switch_case(stage, branches)


def _check(network: StagedNetwork, ticks: Ticks) -> None:
  stages, number = len(ticks.forward[0]), 1 + max(map(max, ticks.forward))
  sizes = network.sizes
  if (stages, number) != (sizes.stages, sizes.micro_batches):
    raise ValueError(
      f"schedule {ticks.name} has {stages} stages and {number} micro-batches, the "
      f"network is cut into {sizes.stages} and {sizes.micro_batches}"
    )
  if not ticks.recomputes and stages > 1:
    raise ValueError(
      "pipeline.remat: must be 'cell' where all devices run one program: between ticks "
      "a stage keeps its input only"
    )
