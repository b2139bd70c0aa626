"""What no order of actions can do without: never more than a plan needs."""

import itertools

import pytest

from tests.priced import params
from tfpipe import draft
from tfpipe.memory_bound import least_cells
from tfpipe.model import REMAT, SCHEDULES
from tfpipe.network import Network
from tfpipe.optimizers import SGD, Learner


def run(*flops, batch=8, **fields):
  p = params(*flops, batch=batch)
  for layer in p.task.layers:
    layer.Set(**fields)
  p.task.learner = Learner.Params().Set(optimizer=SGD.Params())
  return p


@pytest.mark.parametrize("remat", REMAT)
@pytest.mark.parametrize("weights", [1, 200])
def test_whatever_fits_is_never_said_to_need_more_partitions(remat, weights):
  p = run(3, 1, 4, 1, 5, 9, 2, inside=50, width=2, weights=weights)
  network, number = Network(p), 0
  for name, k, m in itertools.product(SCHEDULES, (1, 2, 3, 4, 6, 8), (1, 2, 4, 8)):
    pipe = p.pipeline.Copy().Set(
      schedule=name, num_partitions=k, num_micro_batches=m, remat=remat
    )
    try:
      need = draft.make(pipe, network).most_bytes()
    except ValueError:  # the schedule is not for these numbers
      continue
    number += 1
    assert draft.fewest_partitions(pipe, network, need) <= k, (name, k, m)
  assert number > 100


def fewest(limit, remat="cell", schedule="1f1b", m=2):
  # Four layers of 100 weights: 400 bytes, as much for the sums of gradients, and for
  # new gradients; of each of 4 examples they keep 10 bytes, and hand on 2 numbers.
  p = run(1, 1, 1, batch=4 * m, inside=10, width=2, weights=100)
  pipe = p.pipeline.Copy().Set(num_micro_batches=m, schedule=schedule, remat=remat)
  return draft.fewest_partitions(pipe, Network(p), limit)


def test_the_fewest_cells_are_those_filled_one_after_the_other():
  layer = 3 * 400 + 4 * 10
  border = 4 * 2 * 4
  assert fewest(4 * layer + 3 * border) == 1
  assert fewest(4 * layer + 3 * border - 1) == 2
  # Of two cells of two layers the second has a border in front.
  assert fewest(2 * layer + 2 * border) == 2
  assert fewest(2 * layer + 2 * border - 1) == 3
  assert fewest(layer + border) == 4
  assert fewest(layer + border - 1) == 5  # more than there are layers
  # With one micro-batch, gradients are added to nothing.
  assert fewest(4 * (layer - 400) + 3 * border, m=1) == 1
  # One layer's inside after the other; all micro-batches at once.
  assert fewest(4 * 3 * 400 + 40 + 3 * border, remat="layer") == 1
  whole = 4 * 2 * 400 + 3 * 4 * 40 + 3 * 3 * border
  assert fewest(whole, "none", "gpipe", m=3) == 2
  assert fewest(whole + 4 * 400, "none", "gpipe", m=3) == 1


def test_no_layers_need_no_second_cell():
  assert least_cells([], [], 1, remat="cell", adds=True) == 1
