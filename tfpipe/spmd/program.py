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

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tfpipe.lazy import tf
from tfpipe.optimizers.learner import Learner
from tfpipe.schedule.ticks import Ticks
from tfpipe.spmd.collectives import Collectives, Groups, Pairs
from tfpipe.spmd.flat_update import FlatUpdate
from tfpipe.spmd.network import StagedNetwork
from tfpipe.spmd.tick import TickLoop

STEP = "step"
"""Checkpoint entry of the number of mini-batches seen."""

Arrays: TypeAlias = "Mapping[str, np.ndarray]"


class Program:
  """The training step of a network on R pipelines of K devices.

  The state of a device is a dict: vectors of its stage in the layout of that name, and
  scalars by the names of their checkpoint entries.

  Args:
    network: cut into K stages.
    ticks: when each stage does what.
    learner: how it learns; nothing of its state is used.
    num_pipelines: R, how many mini-batches of the network's size are one.
    measure_every: the steps at whose multiples norms of update and weights are told;
      0 for never.

  Attributes:
    num_replicas: R·K.
    layouts: of the vectors.
    counters: dtypes of the scalars.

  Raises:
    ValueError: network and ticks do not fit, or cannot run so.
  """

  def __init__(
    self,
    network: StagedNetwork,
    ticks: Ticks,
    learner: Learner,
    num_pipelines: int = 1,
    measure_every: int = 0,
  ) -> None:
    _check(network, ticks)
    if num_pipelines < 1:
      raise ValueError(f"num_pipelines={num_pipelines}: must be at least 1")
    self.network = network
    self.ticks = ticks
    self._update = FlatUpdate(learner, network.weights, network.l2_names())
    self._num_pipelines = num_pipelines
    self._measure_every = measure_every
    self._stages = network.sizes.stages
    self.num_replicas = num_pipelines * self._stages
    self.layouts = {
      "weights": network.weights,
      "fixed": network.fixed,
      **self._update.layouts,
    }
    self.counters = {STEP: np.int64, **self._update.counters}

  def specs(self) -> dict[str, tf.TensorSpec]:
    """Describes the state of a device."""
    vectors = {
      name: tf.TensorSpec([layout.size]) for name, layout in self.layouts.items()
    }
    return vectors | {n: tf.TensorSpec([], t) for n, t in self.counters.items()}

  def pack(self, name: str, entries: Arrays) -> list[np.ndarray]:
    """Gives a part of the state of each stage.

    Args:
      name: of the part.
      entries: values by the names of checkpoint entries.
    """
    if name in self.counters:
      return [np.asarray(entries[name], self.counters[name])] * self._stages
    shapes, prefix = self.layouts[name].stages, _prefix(name)
    names = {entry for own in shapes for entry in own}
    return list(self.layouts[name].pack({n: entries[prefix + n] for n in names}))

  def unpack(self, name: str, parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Gives the checkpoint entries in a part of the state of all stages.

    Raises:
      ValueError: copies are not equal.
    """
    if name in self.counters:
      return {name: parts[0]}
    found = self.layouts[name].unpack(parts)
    return {_prefix(name) + entry: value for entry, value in found.items()}

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
      batch: fields of the mini-batch of this device's pipeline, as `MiniBatch` has
        them: [M, numbers].
      unrolled: write all ticks out instead of a loop, for a look at what one stage does
        if `replica` is a constant.

    Returns:
      dict of `state`, the new one; `gradients`: vector of the gradients of the sum of
      the loss over all pipelines, for this stage's weights; and, of all devices
      together, what `Pipeline.train_function` says: `metrics`, `micro_batch_losses`
      (of one pipeline after the other), `finite`, `update`.
    """
    stage = tf.math.floormod(replica, self._stages)
    pipeline = replica // self._stages
    loop = TickLoop(self.network, self.ticks, collectives, self._pairs())
    carry = loop.run(stage, pipeline, state, batch, unrolled=unrolled)

    def everywhere(value: tf.Tensor) -> tf.Tensor:
      return collectives.sum(value, [list(range(self.num_replicas))])

    mine = tf.equal(tf.range(self._num_pipelines), pipeline)[:, None]
    losses = everywhere(tf.reshape(tf.where(mine, carry.losses, 0.0), [-1]))
    metrics = everywhere(carry.metrics)
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
    following = state[STEP] + 1
    measure = tf.constant(False)
    if self._measure_every:
      measure = tf.equal(tf.math.floormod(following, self._measure_every), 0)
    new, report = self._update.run(
      stage,
      state,
      sums,
      weight,
      lambda x: collectives.sum(x, self._pipelines()),
      measure,
    )
    moves = finite & tf.logical_not(report["skipped"])
    new |= {
      "fixed": self._moved(stage, state["fixed"], moments, moves),
      STEP: following,
    }
    return {
      "state": new,
      "gradients": sums,
      "metrics": {
        name: tuple(tf.unstack(pair))
        for name, pair in zip(self.network.metrics, tf.unstack(metrics), strict=True)
      },
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
  if ticks.recomputes != (network.remat == "cell"):
    raise ValueError(
      f"schedule {ticks.name} does {'' if ticks.recomputes else 'not '}recompute "
      f"cells, which is not pipeline.remat={network.remat!r}"
    )


def _prefix(name: str) -> str:
  """Gives what checkpoint entries of a layout are named by before its own names."""
  return "weights/" if name in ("weights", "fixed") else ""
