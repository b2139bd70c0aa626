"""One entry of a schedule: what a device does with one stage and micro-batch."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

__all__ = ["KINDS", "Action", "Kind"]

Kind = Literal["F", "R", "B", "W", "BW", "U"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_WORDS = {
  "F": "forward",
  "R": "recomputation",
  "B": "input gradient",
  "W": "weight gradient",
  "BW": "backward",
  "U": "update",
}


class Action(NamedTuple):
  """What is done, for which stage and micro-batch.

  Attributes:
    kind: F forward; R the forward again, before the backward; B gradient with respect
      to the stage's input; W with respect to its weights; BW both at once; U update of
      the weights.
    stage: counted through the model from 0.
    micro_batch: the first micro-batch the action covers; of U, the number of the
      update, counted from 0.
    pipe: which copy of the stage, where a schedule sends micro-batches through the
      devices in more than one direction (Chimera).
    size: number of consecutive micro-batches covered. A forward of size 2 whose
      backwards have size 1 is Chimera's forward doubling, and its backward halving if
      micro-batches are counted in halves.
    version: which weights are used: those after this many updates of the stage within
      the schedule. 0 for U.
  """

  kind: Kind
  stage: int
  micro_batch: int
  pipe: int = 0
  size: int = 1
  version: int = 0

  @property
  def micro_batches(self) -> range:
    """The micro-batches covered."""
    return range(self.micro_batch, self.micro_batch + self.size)

  def __str__(self) -> str:
    if self.kind == "U":
      subject = f"number {self.micro_batch}"
    elif self.size == 1:
      subject = f"micro-batch {self.micro_batch}"
    else:
      subject = f"micro-batches {self.micro_batch} to {self.micro_batches[-1]}"
    pipe = f", pipe {self.pipe}" if self.pipe else ""
    return f"{self.kind} ({_WORDS[self.kind]} of stage {self.stage}, {subject}{pipe})"
