import re

from tests.priced import Priced, PricedLoss, params
from tfpipe import plan, plan_text
from tfpipe.hardware import Hardware

KIB = 1024


def layers():
  """Gives two layers that keep 1 and 2 KiB for each example, with 256 weights each."""
  first = Priced.Params().Set(name="a", flops=6, weights=256, inside=KIB, width=64)
  return [
    first,
    PricedLoss.Params().Set(name="b", flops=3, weights=256, inside=2 * KIB),
  ]


def make(hardware=None, **pipeline):
  p = params(layers=layers(), num_partitions=2, **{"num_micro_batches": 3, **pipeline})
  return plan.make(p, hardware)


def test_the_line_says_which_device_needs_most_for_what_and_what_remat_saves():
  # 12 pictures of 25 numbers on device 0; 12 labels of 4 bytes on device 1. Micro-
  # batches of 4 keep 4 and 8 KiB, and a border of 1 KiB. Adam has two slots.
  assert plan_text.memory_line(make(remat="cell")) == (
    "memory: device 1 needs most, 15.0 KiB (weights 1.0 KiB, slots 2.0 KiB, "
    "accumulators 1.0 KiB, batch 48 B, activations 11.0 KiB); remat=cell keeps at most "
    "11.0 KiB of activations on a device instead of 27.0 KiB"
  )
  assert plan_text.memory_line(make(remat="none")).endswith(
    "activations 27.0 KiB); remat=none keeps at most 27.0 KiB of activations on a "
    "device, remat=cell would keep 11.0 KiB"
  )
  assert plan_text.memory_line(make(remat="layer")).endswith(
    "; remat=layer keeps at most 11.0 KiB of activations on a device instead of 27.0 "
    "KiB"
  )


def test_the_details_have_a_line_for_each_stage():
  # Device 0 needs most in its second backward, which adds 1 KiB to the sums; device 1
  # has lost a border of 1 KiB by then, and needs as much in its first.
  found = plan_text.details(make(remat="cell")).splitlines()
  assert [re.sub(r"\s{2,}", "|", line) for line in found] == [
    "device|cell|weights|slots|sums|new|batch|stash|again|device total",
    "0|0|1.0 KiB|2.0 KiB|1.0 KiB|1.0 KiB|1.2 KiB|0 B|4.0 KiB|10.2 KiB",
    "1|1|1.0 KiB|2.0 KiB|1.0 KiB|0 B|48 B|3.0 KiB|8.0 KiB|15.0 KiB",
  ]


def test_for_hardware_they_have_times_and_whether_a_device_fits():
  hardware = Hardware("mine", 12 * KIB, 24.0, "float32", 1e9, 0)
  lines = plan_text.details(make(hardware, remat="cell")).splitlines()
  # F and R of 4 · 6 FLOPs, no B, W as F: 3 s; then F, B, W, R of half that each: 2 s.
  assert [line.split("  ")[0:1] + line.split()[-3:] for line in lines[:3]] == [
    ["device", "device", "total", "fits"],
    ["0", "10.2", "KiB", "yes"],
    ["1", "15.0", "KiB", "NO"],
  ]
  assert [line[14:20].strip() for line in lines[:3]] == ["time", "3 s", "2 s"]
  assert lines[3:] == [
    "note: times are FLOPs at 100% of the peak of mine, 24 FLOP/s in float32"
  ]


def test_the_total_of_a_device_stands_behind_its_last_stage():
  p = params(*[1] * 4, schedule="zb_v", num_partitions=2, num_micro_batches=4)
  lines = plan_text.details(plan.make(p)).splitlines()
  assert [line.split()[:2] for line in lines[1:5]] == [
    ["0", "0"],
    ["0", "3"],
    ["1", "1"],
    ["1", "2"],
  ]
  assert len(lines[1]) < len(lines[2])
  assert len(lines[3]) < len(lines[4])
  assert lines[5].startswith("note: activations are counted until W")
