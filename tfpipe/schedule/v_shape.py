"""Lists of work for devices with two stages each, one on the way down and one back up.

Device d of K holds stage d, called a, and stage 2K - 1 - d, called z: so the last
device turns a micro-batch round by itself, and all devices hold equally much.
"""

from __future__ import annotations

from collections import deque

from tfpipe.schedule.action import Action, Kind
from tfpipe.schedule.generate import SizeError

__all__ = ["VList", "check_two"]


def check_two(name: str, stages_per_device: int) -> None:
  """Raises SizeError unless there are two stages a device."""
  if stages_per_device != 2:
    raise SizeError(name, "stages_per_device", stages_per_device, "2, a V")


class VList:
  """A device's list, to be filled with the next micro-batches in turn.

  Attributes:
    actions: so far.
  """

  def __init__(self, num_devices: int, device: int) -> None:
    self.actions: list[Action] = []
    self._stages = {"a": device, "z": 2 * num_devices - 1 - device}
    self._next = {(kind, name): 0 for kind in ("F", "B", "W") for name in "az"}
    self._waiting: deque[str] = deque()

  def add(self, text: str, times: int = 1) -> None:
    """Appends actions, `times` times over.

    Args:
      text: kinds and a or z, such as "Fa BWz Bz Wz". Each takes the next micro-batch.
        A lone "w" is the W that has waited longest behind its B, if there is one.
      times: how often.
    """
    for word in text.split() * times:
      if word != "w":
        self._append(word[:-1], word[-1])  # pyright: ignore[reportArgumentType]
      elif self._waiting:
        self._append("W", self._waiting[0])

  def left(self, kind: str, name: str, num_micro_batches: int) -> int:
    """Returns how many micro-batches are still to be done."""
    return num_micro_batches - self._next[kind, name]

  def _append(self, kind: Kind, name: str) -> None:
    micro_batch = self._next[kind[0], name]
    self.actions.append(Action(kind, self._stages[name], micro_batch))
    for letter in kind:
      self._next[letter, name] += 1
    if kind == "B":
      self._waiting.append(name)
    elif kind == "W":
      self._waiting.remove(name)
