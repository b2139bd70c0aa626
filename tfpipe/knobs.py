"""Which setting makes a plan fit that does not: each is tried, none is guessed.

A knob is one of the Params, turned step by step while the others stay, until all
devices hold what they need. A few such knobs are enough of an answer. If there is no
single one, more partitions are tried together with re-materialization.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfpipe import draft, model, schedule
from tfpipe.memory_bound import state_bytes
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.plan_settings import FLAGS
from tfpipe.units import format_bytes

__all__ = ["advice"]

# Actions of all schedules tried, together: some seconds. Several knobs turned at once
# are what is left to say.
_BUDGET = 1_500_000
_LAST_BUDGET = 2 * _BUDGET
_ENOUGH = 3


def advice(p: Params, plan: Plan, network: Network) -> list[str]:
  """Says what does not fit, and which settings, one at a time, make it fit.

  Args:
    p: Params of the plan.
    plan: made for some hardware.
    network: of `p`.

  Returns:
    lines; none if all fits or no hardware is known.
  """
  if plan.hardware is None or not plan.too_small:
    return []
  limit, too_small = plan.hardware.memory_bytes, plan.too_small
  worst = max(too_small, key=plan.device_bytes.__getitem__)
  lines = [
    f"does not fit: {len(too_small)} of {len(plan.device_bytes)} devices need more "
    f"than the {format_bytes(limit)} of {plan.hardware.name}; device {worst} needs "
    f"{format_bytes(plan.device_bytes[worst])}"
  ]
  trial = _Trial(p, network, limit)
  turned = (trial.turn(knob(p, network, limit)) for knob in _KNOBS)
  found = list(itertools.islice(filter(None, turned), _ENOUGH))
  if not found:
    trial.budget = _LAST_BUDGET
    turned = (trial.turn(knob(p, network, limit)) for knob in _TOGETHER)
    found = list(itertools.islice(filter(None, turned), 1))
  lines += [f"it fits with {line}" for line in found]
  if not found:
    lines.append(_nothing_helps(network, limit))
  if trial.left_out:
    lines.append(
      f"{trial.left_out} settings were not tried: planning them takes too long"
    )
  return lines


Change = dict[str, Any]
"""Paths of Params and their values."""


class _Trial:
  """Tries settings, as many as the budget of actions allows.

  Attributes:
    budget: actions that may still be planned.
    left_out: settings that were not tried for want of it.
  """

  def __init__(self, p: Params, network: Network, limit: int) -> None:
    self._p = p
    self._network = network
    self._limit = limit
    self.budget = _BUDGET
    self.left_out = 0

  def turn(self, changes: Iterator[Change]) -> str:
    """Describes the first change that makes all devices fit; '' if none does."""
    for change in changes:
      need = self._need(change)
      if need is not None and need <= self._limit:
        flags = " ".join(f"{_flag(path)}={value}" for path, value in change.items())
        return f"{flags} ({format_bytes(need)})"
    return ""

  def _need(self, change: Change) -> int | None:
    """Returns the bytes of the device that needs most; None if it cannot be."""
    p = self._p.Copy().Set(**change)
    try:
      network = self._network
      if any(not path.startswith("pipeline.") for path in change):
        network = Network(p)
      model.check(p)
      fewest = draft.fewest_partitions(p.pipeline, network, self._limit)
      if fewest > p.pipeline.num_partitions:
        return None
      actions = draft.effort(p.pipeline)
      if actions > self.budget:
        self.left_out += 1
        return None
      self.budget -= actions
      return draft.make(p.pipeline, network).most_bytes(self._limit)
    except ValueError:
      return None  # e.g. a schedule that needs other numbers of micro-batches


def _remat(p: Params, network: Network, limit: int) -> Iterator[Change]:
  for remat in ("cell", "layer"):
    if remat != p.pipeline.remat:
      yield {"pipeline.remat": remat}


def _micro_batches(p: Params, network: Network, limit: int) -> Iterator[Change]:
  for number in network.micro_batches:
    if number > p.pipeline.num_micro_batches:
      yield {"pipeline.num_micro_batches": number}


def _schedules(p: Params, network: Network, limit: int) -> Iterator[Change]:
  for name in schedule.NAMES:
    if name != p.pipeline.schedule:
      # What is set may be for the present schedule only.
      unset = {
        f"pipeline.{option}": 0
        for option in model.SCHEDULE_OPTIONS
        if p.pipeline.Get(option)
      }
      yield {"pipeline.schedule": name, **unset}


def _batch(p: Params, network: Network, limit: int) -> Iterator[Change]:
  rows = network.batch_size() // 2
  while rows >= p.pipeline.num_micro_batches:
    yield {"input.batch_size": rows}
    rows //= 2


def _partitions(p: Params, network: Network, limit: int) -> Iterator[Change]:
  number, most = p.pipeline.num_partitions, len(network.names)
  least = max(number, draft.fewest_partitions(p.pipeline, network, limit))
  quarters = (4, 5, 6, 8, 12, 16, 32, 64)
  for more in sorted({-(-least * part // 4) for part in quarters}):
    if number < more <= most:
      yield {"pipeline.num_partitions": more}


_KNOBS: Sequence[Callable[[Params, Network, int], Iterator[Change]]] = (
  _remat,
  _micro_batches,
  _schedules,
  _batch,
  _partitions,
)


def _partitions_and_remat(p: Params, network: Network, limit: int) -> Iterator[Change]:
  for remat in _remat(p, network, limit):
    for partitions in _partitions(p.Copy().Set(**remat), network, limit):
      yield {**partitions, **remat}


def _partitions_and_all(p: Params, network: Network, limit: int) -> Iterator[Change]:
  """Turns all that helps at once: most micro-batches, few of them in flight."""
  wanted: Change = {
    "pipeline.num_micro_batches": network.micro_batches[-1],
    "pipeline.schedule": "1f1b",
    "pipeline.remat": "cell",
    **{f"pipeline.{option}": 0 for option in model.SCHEDULE_OPTIONS},
  }
  changes = {path: value for path, value in wanted.items() if p.Get(path) != value}
  for partitions in _partitions(p.Copy().Set(**changes), network, limit):
    yield {**partitions, **changes}


_TOGETHER = (_partitions_and_remat, _partitions_and_all)


def _nothing_helps(network: Network, limit: int) -> str:
  """Says whether one layer alone is too large, which no setting helps against."""
  needs = [state_bytes(state) for state in network.states]
  largest = max(range(len(needs)), key=needs.__getitem__)
  state = format_bytes(needs[largest])
  if needs[largest] > limit:
    return (
      f"no setting makes it fit: layer {network.names[largest]!r} alone needs {state} "
      "for weights, slots and gradients"
    )
  return (
    f"no setting tried makes it fit; the largest layer, {network.names[largest]!r}, "
    f"needs {state} for weights, slots and gradients"
  )


def _flag(path: str) -> str:
  """Gives the trainer's flag for one of the Params."""
  owner, _, key = path.partition(".")
  return f"--{key}" if owner == "pipeline" and key in FLAGS else f"--set {path}"
