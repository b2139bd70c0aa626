"""Run a schedule on given times, without tensors: how long it takes and why.

Each device does its list in order, each action as soon as what it needs has arrived.
What crosses devices arrives later by the transfer time, which occupies neither device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tfpipe.schedule.action import Action
from tfpipe.schedule.schedule import Schedule, dependencies, order
from tfpipe.timeline import Secs, Span, Timeline

__all__ = ["StageTimes", "simulate"]


@dataclass(frozen=True)
class StageTimes:
  """How long each stage takes for one micro-batch; an action of size n takes n times.

  Attributes:
    forward: F of each stage.
    input_gradient: B of each stage.
    weight_gradient: W of each stage; BW takes both.
    recompute: R of each stage; as forward unless given.
    update: U of each stage, with the exchange of gradients between its copies; 0 unless
      given.

  Raises ValueError if there is not one time for each stage, or one is negative or not
  finite.
  """

  forward: Sequence[Secs]
  input_gradient: Sequence[Secs]
  weight_gradient: Sequence[Secs]
  recompute: Sequence[Secs] = ()
  update: Sequence[Secs] = ()

  def __post_init__(self) -> None:
    object.__setattr__(self, "recompute", self.recompute or self.forward)
    object.__setattr__(self, "update", self.update or [0] * len(self.forward))
    for name, times in list(vars(self).items()):
      _check_times(name, times, len(self.forward))
      object.__setattr__(self, name, tuple(times))

  @classmethod
  def equal(
    cls,
    num_stages: int,
    forward: Secs = 1,
    input_gradient: Secs = 1,
    weight_gradient: Secs = 1,
  ) -> StageTimes:
    """Returns the same times for every stage; as they are, a backward takes 2."""
    return cls(
      [forward] * num_stages,
      [input_gradient] * num_stages,
      [weight_gradient] * num_stages,
    )

  def secs(self, action: Action) -> Secs:
    """Returns how long an action takes."""
    times = {
      "F": self.forward,
      "R": self.recompute,
      "B": self.input_gradient,
      "W": self.weight_gradient,
      "U": self.update,
    }
    return action.size * sum(times[kind][action.stage] for kind in action.kind)


def simulate(
  schedule: Schedule, times: StageTimes, transfer_secs: Secs | Sequence[Secs] = 0
) -> Timeline:
  """Returns the timeline of a valid schedule, from an idle start.

  Args:
    schedule: what to run; `validate` it first if it does not come from a generator.
    times: how long stages take, in any unit; ints and Fractions give exact results.
    transfer_secs: how long activations or gradients of one micro-batch are on the way
      between stages on different devices: one number, or one for each border.

  Raises ValueError if there is not one time for each stage and border, and for a
  schedule that waits for ever.
  """
  if len(times.forward) != schedule.num_stages:
    raise ValueError(
      f"times are for {len(times.forward)} stages, but schedule {schedule.name} has "
      f"{schedule.num_stages}"
    )
  num_borders = schedule.num_stages - 1
  if not isinstance(transfer_secs, Sequence):
    transfer_secs = [transfer_secs] * num_borders
  _check_times("transfer_secs", transfer_secs, num_borders)

  ends: dict[Action, Secs] = {}
  free: list[Secs] = [0] * schedule.num_devices
  spans = []
  for action in order(schedule):
    device = schedule.device(action)
    arrivals = [
      ends[needed] + _transfer(schedule, needed, action, transfer_secs)
      for needed in dependencies(schedule, action)
    ]
    start = max([free[device], *arrivals])
    ends[action] = free[device] = start + times.secs(action)
    spans.append(Span(device, action, start, ends[action]))
  return Timeline(tuple(spans), schedule.num_devices)


def _transfer(
  schedule: Schedule, source: Action, target: Action, secs: Sequence[Secs]
) -> Secs:
  """Returns how long a result is on the way; 0 on one device and between copies."""
  if source.stage == target.stage or schedule.device(source) == schedule.device(target):
    return 0
  return source.size * secs[min(source.stage, target.stage)]


def _check_times(name: str, times: Sequence[Secs], expected: int) -> None:
  if len(times) != expected:
    raise ValueError(f"{name} has {len(times)} times, expected {expected}")
  for index, value in enumerate(times):
    if not math.isfinite(value) or value < 0:
      raise ValueError(f"{name}[{index}] is {value!r}: expected a finite number >= 0")
