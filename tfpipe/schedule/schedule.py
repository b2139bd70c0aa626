"""A schedule: for each device an ordered list of actions.

The lists fix every number a training step computes; times only fix its speed. So one
immutable record is validated, simulated, drawn, saved and built, and a new schedule is
new data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tfpipe.schedule.action import Action
from tfpipe.schedule.graph import Graph

__all__ = ["Schedule", "dependencies", "order"]


@dataclass(frozen=True)
class Schedule:
  """Which device runs which actions, in which order.

  Attributes:
    name: what reports call it.
    num_stages: stages of the model.
    num_micro_batches: micro-batches from the first action to the last.
    placement: for each pipe, the device of each stage.
    actions: for each device, what it does, in order.
    exact: whether every gradient is taken at the weights its update starts from, so
      that the result is that of one device.
    num_versions: weight versions of a stage that are alive at once, at most.
  """

  name: str
  num_stages: int
  num_micro_batches: int
  placement: tuple[tuple[int, ...], ...]
  actions: tuple[tuple[Action, ...], ...]
  exact: bool = True
  num_versions: int = 1

  @property
  def num_devices(self) -> int:
    """Number of devices, each with a list of actions."""
    return len(self.actions)

  def device(self, action: Action) -> int:
    """Returns the device on which the stage and pipe of an action are placed."""
    return self.placement[action.pipe][action.stage]

  @cached_property
  def num_updates(self) -> int:
    """Updates of each copy of a stage, from the first action to the last."""
    return sum(
      action.kind == "U" and action.stage == 0 and action.pipe == 0
      for actions in self.actions
      for action in actions
    )

  @property
  def updates_at_once(self) -> bool:
    """Whether all stages update together, when the last gradient is there.

    A single update is one of all weights: the norm of all gradients, and whether all
    are finite, decide on each.
    """
    return self.num_updates == 1

  def update_of(self, micro_batch: int) -> int:
    """Returns the number of the update that a micro-batch's gradient goes into."""
    return micro_batch * self.num_updates // self.num_micro_batches

  def micro_batches_of(self, update: int) -> range:
    """Returns the micro-batches whose gradients go into an update."""
    updates = max(self.num_updates, 1)
    first, behind = (
      -(-number * self.num_micro_batches // updates) for number in (update, update + 1)
    )
    return range(first, behind)

  @cached_property
  def graph(self) -> Graph:
    """The actions by number, and what each needs."""
    return Graph(self)


def dependencies(schedule: Schedule, action: Action) -> list[Action]:
  """Lists the actions whose results an action needs, without repeats; see `Graph`.

  Raises ValueError, naming both, if the schedule lacks an action that is needed.
  """
  graph = schedule.graph
  return [graph.actions[number] for number in dict.fromkeys(graph.needs(action))]


def order(schedule: Schedule) -> list[Action]:
  """Returns all actions in one order that fits every device list and dependency.

  Round after round, each device in turn does its next action if what it needs is done.
  So the order is the same each time, and a device's work is spread evenly in it.

  Raises ValueError, naming the action at which each device is blocked, if devices wait
  for each other for ever.
  """
  return [schedule.graph.actions[number] for number in schedule.graph.order]
