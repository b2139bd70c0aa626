"""ZB-H1 and ZB-H2: weight gradients fill the waits of 1F1B and of eager 1F1B.

Only the input gradient is waited for by another device. Its other half, the gradient
with respect to the weights, can wait until there is nothing else to do. Qi et al.,
"Zero Bubble Pipeline Parallelism" (2023), section 2.
"""

from __future__ import annotations

from tfpipe.schedule.one_f_one_b import run_ahead
from tfpipe.schedule.schedule import Schedule

__all__ = ["h1", "h2"]


def h1(num_devices: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns ZB-H1, one stage a device; weight gradients in increasing order.

  Keeps as many activations as 1F1B on its first device. A third of 1F1B's bubble is
  left if forward, input and weight gradient take equally long and there are at least as
  many micro-batches as devices; with fewer it is sound, and the bubble larger.

  Args:
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each input gradient.

  Raises ValueError for a number below 1.
  """
  return run_ahead("zb_h1", num_devices, num_micro_batches, remat, slope=1, split=True)


def h2(num_devices: int, num_micro_batches: int, remat: bool = False) -> Schedule:
  """Returns ZB-H2, one stage a device; weight gradients in increasing order.

  Keeps 2 devices - 1 activations. No device waits between its first and its last action
  if forward, input and weight gradient take equally long and there are at least as many
  micro-batches as that; with fewer it is sound, and devices wait.

  Args:
    num_devices: devices and stages, >= 1.
    num_micro_batches: micro-batches of a step, >= 1.
    remat: whether a stage recomputes its forward before each input gradient.

  Raises ValueError for a number below 1.
  """
  return run_ahead("zb_h2", num_devices, num_micro_batches, remat, slope=2, split=True)
