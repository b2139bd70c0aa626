"""What the plan tells the reader of its predictions."""

from tests.priced import Priced, PricedLoss, network, params
from tfpipe import plan
from tfpipe.hardware import Hardware

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


def test_the_plan_says_if_computing_again_saves_nothing():
  # One device: F R B W, and what is inside stays from R to W instead of from F to W.
  shape = {"schedule": "zb_h1", "remat": "cell"}
  note = "remat=cell saves no memory with this schedule: what a cell computes again "
  made = plan.make(params(1, 1, **shape))
  assert [text for text in made.notes if text.startswith(note)]
  # 1F1B's first device of two keeps two forwards, and computes one of them again.
  layers = network(1, 1)
  for layer in layers:
    layer.inside = 100
  shape |= {"schedule": "1f1b", "num_partitions": 2, "num_micro_batches": 4}
  made = plan.make(params(layers=layers, **shape))
  assert not [text for text in made.notes if text.startswith(note)]


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
