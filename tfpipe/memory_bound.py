"""A bound of memory from below: what no cut and no order of actions can do without.

It takes no schedule, so it tells at once what need not be planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfpipe.cost import LayerCost
from tfpipe.memory import LayerState

__all__ = ["least_cells", "state_bytes"]


def state_bytes(layer: LayerState) -> int:
  """Returns the bytes that a layer has all the time."""
  return layer.weights + layer.slots + layer.averages + layer.gradients + layer.sums


def least_cells(
  costs: Sequence[LayerCost],
  states: Sequence[LayerState],
  limit: int,
  *,
  remat: str,
  in_flight: int = 1,
  adds: bool,
) -> int:
  """Returns the least number of cells that a device each could hold.

  In the backward of a micro-batch a cell has its state, what that micro-batch keeps,
  and from the second one on new gradients besides their sums. More layers need more, so
  cells that are filled one after the other are the fewest.

  Args:
    costs: of all layers, for one micro-batch.
    states: of all layers.
    limit: bytes of a device.
    remat: as `pipeline.remat`.
    in_flight: micro-batches that each cell has when it begins with backwards.
    adds: whether a cell has more than one backward.

  Returns:
    more than there are layers, if one of them alone does not fit.
  """
  number, first = 1, 0
  held = _Held(remat, in_flight, adds)
  for index, (cost, state) in enumerate(zip(costs, states, strict=True)):
    before = costs[index - 1].border_bytes if index else 0
    if held.with_layer(cost, state, before) <= limit:
      continue
    if index > first:
      number, first = number + 1, index
      held = _Held(remat, in_flight, adds)
      if held.with_layer(cost, state, before) <= limit:
        continue
    return len(costs) + 1
  return number


class _Held:
  """What a cell of some layers has in its first backwards; see `memory`."""

  def __init__(self, remat: str, in_flight: int, adds: bool) -> None:
    self._remat = remat
    self._in_flight = in_flight
    self._adds = adds
    self._layers = self._state = self._new = 0
    self._input = self._borders = self._inside = self._largest = 0

  def with_layer(self, cost: LayerCost, state: LayerState, before: int) -> int:
    """Adds a layer; gives the bytes of all so far.

    Args:
      cost: of the layer.
      state: of the layer.
      before: bytes of the border in front of it.
    """
    if self._layers:
      self._borders += before
    else:
      self._input = before
    self._layers += 1
    self._state += state_bytes(state)
    self._new += state.gradients if self._adds else 0
    self._inside += cost.activation_bytes
    self._largest = max(self._largest, cost.activation_bytes)
    second = self._activations(max(1, self._in_flight - 1)) + self._new
    return self._state + max(self._activations(self._in_flight), second)

  def _activations(self, in_flight: int) -> int:
    """Gives the bytes of so many micro-batches, in the backward of one of them."""
    if self._remat == "cell":
      return in_flight * self._input + self._inside + self._borders
    kept = self._input + self._borders
    if self._remat == "layer":
      return in_flight * kept + self._largest
    return in_flight * (kept + self._inside)
