"""Where in a run something is wrong, in words: layer, stage, device, micro-batch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tfpipe.program.refusal import layer_name
from tfpipe.program.run import Run
from tfpipe.schedule.schedule import Schedule

_NODE = re.compile(r"stage(\d+)/micro(\d+)/(\w+)/")
_PROBED = re.compile(r"\bprobe(\d+)/([a-z]+)")
_LAYER = re.compile(r"\blayer(\d+)(?:_\d+)?/")


class Places:
  """Names layers and stages of a run."""

  def __init__(self, run: Run) -> None:
    self.names = [cost.name for cost in run.plan.costs]
    self._cells = run.plan.cells
    self._placement = run.plan.schedule.placement[0]
    self._devices = run.devices

  def layer(self, index: int) -> str:
    """Names a layer by its number."""
    ends = [end for _, end in self._cells]
    stage = next(s for s, end in enumerate(ends) if index < end)
    return f"layer {self.names[index]!r} (stage {stage} on {self.device(stage)})"

  def layers(self, stage: int) -> str:
    """Names the layers of a stage, and its device."""
    start, end = self._cells[stage]
    first, last = self.names[start], self.names[end - 1]
    layers = f"layer {first!r}" if end - start == 1 else f"layers {first!r} to {last!r}"
    return f"{layers} on {self.device(stage)}"

  def device(self, stage: int) -> str:
    """Names the device of a stage's first copy."""
    return self._devices[self._placement[stage]]

  def of_note(self, error: BaseException) -> str:
    """Names the layer whose FProp raised an error; empty if it was none."""
    name = layer_name(error)
    return self.layer(self.names.index(name)) if name else ""

  def of_error(self, text: str) -> str:
    """Names the action in which TensorFlow met an error; empty if it does not say."""
    match = _NODE.search(text)
    if match is None:
      return ""
    stage, micro_batch = int(match[1]), match[2]
    within = _LAYER.search(text)
    place = (
      self.layer(self._cells[stage][0] + int(within[1]))
      if within
      else f"stage {stage}, {self.layers(stage)}"
    )
    return f"{place}, {match[3].replace('_', ' ')} of micro-batch {micro_batch}"

  def of_probe(self, text: str) -> str:
    """Names the layer in which a probe met an error; empty if it does not say."""
    match = _PROBED.search(text)
    return f"{self.layer(int(match[1]))}, {match[2]}" if match else ""


def unfinished(
  schedule: Schedule, places: Places, counts: Sequence[int], num_steps: int
) -> str:
  """Says which actions a step or an evaluation is at: those that wait for no other.

  Args:
    schedule: of the run.
    places: of the run.
    counts: actions that each device has done in all steps.
    num_steps: steps, or batches of evaluations, that have begun, the one that hangs
      among them.
  """
  graph, done, heads, first = schedule.graph, set[int](), [], 0
  for actions, count in zip(schedule.actions, counts, strict=True):
    own = [first + i for i, action in enumerate(actions) if action.kind != "U"]
    position = count - (num_steps - 1) * len(own)
    done |= set(own[:position])
    heads += own[position : position + 1]
    first += len(actions)
  if not heads:
    last = "the update does" if schedule.num_updates else "adding up metrics does"
    return f"all devices have done their actions; {last} not end"
  free = [n for n in heads if done.issuperset(graph.needs(graph.actions[n]))]
  texts = []
  for number in free or heads:
    action, device = graph.actions[number], graph.devices[number]
    texts.append(
      f"device {device} does not end {action}: {places.layers(action.stage)}"
    )
  waiting = len(heads) - len(free or heads)
  others = "another device waits" if waiting == 1 else f"{waiting} others wait"
  return "; ".join(texts) + (f"; {others}" if waiting else "")
