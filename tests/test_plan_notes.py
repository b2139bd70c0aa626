"""What the plan tells the reader of its predictions."""

import pytest

from tests.priced import Priced, PricedLoss, network, params
from tfpipe import plan, schedule
from tfpipe.hardware import Hardware
from tfpipe.schedule import text

SLOW = Hardware("slow", 10**6, 4.0, "float32", 8.0, link_latency_secs=3, efficiency=0.5)


class _Unsplit(Priced):
  SPLITS_BACKWARD = False


def test_the_plan_says_what_does_not_split():
  layers = [
    *(_Unsplit.Params().Set(name=f"norm_{i}", flops=1) for i in range(4)),
    PricedLoss.Params().Set(name="loss"),
  ]
  made = plan.make(params(layers=layers, schedule="zb_h1"))
  assert made.notes == (
    "4 layers (norm_0, norm_1, norm_2, ...) hold operations that give both gradients "
    "at once, as batch norm's: these run in B, only the rest in W",
    "activations are counted until W, though B could free a part of them, with the "
    "gradients that W reads, taken to be as large as the outputs of layers with "
    "weights",
  )
  assert plan.make(params(layers=layers, schedule="1f1b")).notes == ()
  assert len(plan.make(params(1, 1, schedule="zb_h1")).notes) == 1


def heavy(number, **pipeline):
  """Plans equal layers that keep much more inside than they hand on."""
  layers = network(*[1] * number)
  for layer in layers[1:]:
    layer.inside = 1000
  return plan.make(params(layers=layers, **pipeline))


def test_the_plan_says_if_computing_again_lowers_no_peak():
  # ZB-H1's last device of two: F F B W ..., two forwards of two layers as without.
  shape = {"schedule": "zb_h1", "num_partitions": 2, "num_micro_batches": 4}
  made = heavy(4, **shape, remat="cell")
  first, last = (row.activations for row in made.stages)
  assert first < last
  assert made.activations == {"cell": last, "none": last}
  assert made.notes[1:] == (
    "remat=cell does not lower the most that a device keeps: what a cell has computed, "
    "again or not, stays until its W; remat=none computes nothing again",
  )
  # 1F1B's first device of two keeps two forwards, and computes one of them again.
  assert heavy(4, **{**shape, "schedule": "1f1b"}, remat="cell").notes == ()


def test_a_device_of_whole_backwards_keeps_nothing_until_a_w(tmp_path):
  # Device 1 has three of four layers and needs most, of one micro-batch at a time.
  lists = [
    [("F", 0), ("F", 1), *[(kind, m) for m in (0, 1) for kind in "RBW"], ("U", 0)],
    [("F", 0), ("BW", 0), ("F", 1), ("BW", 1), ("U", 0)],
  ]
  actions = tuple(
    tuple(schedule.Action(kind, stage, m) for kind, m in own)
    for stage, own in enumerate(lists)
  )
  path = tmp_path / "mixed.json"
  path.write_text(text.to_json(schedule.Schedule("mixed", 2, 2, ((0, 1),), actions)))
  shape = {"schedule": str(path), "num_partitions": 2, "num_micro_batches": 2}
  assert heavy(4, **shape, remat="cell", lengths=(2, 3)).notes[1:] == (
    "remat=cell does not lower the most that a device keeps; remat=none computes "
    "nothing again",
  )


@pytest.mark.parametrize(("name", "num_micro_batches"), [("zb_h1", 1), ("1f1b", 4)])
def test_the_plan_says_if_nothing_is_computed_again(name, num_micro_batches):
  made = heavy(2, schedule=name, num_micro_batches=num_micro_batches, remat="cell")
  assert made.notes[-1] == (
    "remat=cell computes nothing again with this schedule: every backward comes right "
    "behind its own forward"
  )


def test_what_recomputation_saves_is_told_of_the_cut_without_it():
  # F B W take 3 a layer, R 1 but on the last device: 2, 3 and 4 layers take 8, 12 and
  # 12, where 3, 3 and 3 take 9 each without. ZB-H1 has three micro-batches of 4 rows
  # on each device, and the gradients of a row, 4 bytes for each layer, from B to W.
  shape = {"schedule": "zb_h1", "num_partitions": 3, "num_micro_batches": 3}
  cell, none = (heavy(9, **shape, remat=remat) for remat in ("cell", "none"))
  assert {end - start - (not start) for start, end in none.cells} == {3}
  assert cell.cells[-1][1] - cell.cells[-1][0] == 4
  assert cell.activations == {key: none.activations[key] for key in ("cell", "none")}
  assert (
    cell.activations["cell"] > 3 * 4 * 4000 > none.activations["none"] > 3 * 4 * 3000
  )


def test_a_schedule_of_ones_own_is_compared_in_its_own_order(tmp_path):
  # GPipe: without R, both micro-batches of 6 rows are held from F to BW. Each layer
  # keeps 1000 bytes of a row, and its input of 4.
  path = tmp_path / "own.json"
  path.write_text(text.to_json(schedule.make("gpipe", 1, 2, remat=True)))
  made = heavy(2, schedule=str(path), num_micro_batches=2, remat="cell")
  assert made.activations == {"cell": 6 * 2008, "none": 2 * 6 * 2008}


def test_the_plan_says_that_its_times_are_not_those_of_16_bits():
  notes = [
    plan.make(params(1, 1, compute_dtype=dtype), SLOW).notes[-1]
    for dtype in ("float32", "bfloat16")
  ]
  assert notes[0].startswith("times are FLOPs at 50% of the peak of slow")
  assert notes[1] == notes[0] + "; products in bfloat16 may take less"


def test_devices_that_are_one_add_up_their_memory():
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  two = plan.make(params(5, 5, devices="GPU:0,GPU:1", **shape), SLOW)
  for names in ("GPU:0,GPU:0", "GPU:0,/device:gpu:0"):
    one = plan.make(params(5, 5, devices=names, **shape), SLOW)
    assert one.device_bytes == (sum(two.device_bytes),) * 2
    assert one.notes[0] == (
      "devices 0, 1 are all GPU:0: their memory is added up, but times are as if each "
      "were a device of its own"
    )
    small = Hardware("small", sum(two.device_bytes) - 1, 1.0, "float32", 1.0)
    p = params(5, 5, devices=names, **shape)
    assert plan.make(p, small).too_small == (0, 1)
    every = sum(row.activations for row in two.stages)
    assert one.activations["none"] == every
  assert two.notes == one.notes[1:]
