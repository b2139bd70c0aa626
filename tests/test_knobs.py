import re

from tests.priced import Priced, PricedLoss, params
from tfpipe import knobs, plan
from tfpipe.hardware import Hardware
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.network import Network
from tfpipe.optimizers import SGD, Learner


def layers(number=4, weights=0, inside=100, width=1):
  """Gives layers that keep 100 bytes for each of 12 examples, and borders of 4."""
  fields = {"flops": 1, "weights": weights, "inside": inside, "width": width}
  made = [Priced.Params().Set(name=f"layer_{i}", **fields) for i in range(number - 1)]
  return [*made, PricedLoss.Params().Set(name="loss", **fields)]


def advice(limit, batch=12, layers=None, **pipeline):
  p = params(layers=layers, batch=batch, **pipeline)
  p.task.learner = Learner.Params().Set(optimizer=SGD.Params())
  p.input.image_size = 1
  network = Network(p)
  hardware = Hardware("mine", limit, 1.0, "float32", 1.0)
  return p, knobs.advice(p, plan.make(p, hardware, network), network)


def settings(lines):
  return [
    found[1]
    for line in lines
    if (found := re.fullmatch(r"it fits with (.*) \(.*", line))
  ]


def test_what_fits_needs_no_advice():
  assert advice(10**6, layers=layers())[1] == []
  p = params(1)
  assert knobs.advice(p, plan.make(p), Network(p)) == []


def test_the_knobs_that_make_it_fit_are_found_by_trying():
  # Two stages of two layers, two micro-batches of 6: GPipe keeps twice 2 · 600 and a
  # border of 24 between them; device 1 also 24 at its own border, and 12 labels.
  shape = {"num_partitions": 2, "num_micro_batches": 2, "schedule": "gpipe"}
  p, lines = advice(2000, layers=layers(), **shape)
  assert lines[0] == (
    "does not fit: 2 of 2 devices need more than the 2.0 KiB of mine; device 1 needs "
    "2.5 KiB"
  )
  assert settings(lines) == [
    "--remat=cell",
    "--set input.batch_size=6",
    "--num_partitions=4",
  ]
  hardware = Hardware("mine", 2000, 1.0, "float32", 1.0)
  for setting in settings(lines):
    changed = p.Copy()
    path, value = setting.removeprefix("--set ").lstrip("-").split("=")
    changed.SetFromText(path if "." in path else f"pipeline.{path}", value)
    assert plan.make(changed, hardware).too_small == (), setting


def test_another_schedule_may_be_enough():
  # One micro-batch in flight on device 1 in place of four; the other keeps two.
  shape = {"num_partitions": 2, "num_micro_batches": 4}
  _, lines = advice(1500, layers=layers(), **shape)
  assert "--schedule=1f1b" in settings(lines)


def test_more_micro_batches_help_if_only_their_inside_counts():
  # 1,200 bytes of each of two layers with one micro-batch; 400 with three.
  _, lines = advice(1000, layers=layers(2), remat="cell", num_partitions=1)
  assert "--num_micro_batches=3" in settings(lines)


def test_numbers_of_micro_batches_divide_the_batch_of_the_evaluation_too():
  # As above, where 3 would be enough, but does not divide 8; 2 leaves 600 bytes each.
  p = params(layers=layers(2), remat="cell")
  p.task.learner = Learner.Params().Set(optimizer=SGD.Params())
  p.input.image_size = 1
  p.eval_input = SyntheticImageInput.EvalParams().Set(batch_size=8, image_size=1)
  network = Network(p)
  hardware = Hardware("mine", 1000, 1.0, "float32", 1.0)
  lines = knobs.advice(p, plan.make(p, hardware, network), network)
  assert "--num_micro_batches=4" in settings(lines)


def test_a_few_knobs_are_enough():
  # Little is missing: remat, M, another schedule, batch and K all help.
  shape = {"num_partitions": 2, "num_micro_batches": 2, "schedule": "gpipe"}
  _, lines = advice(2400, layers=layers(), **shape)
  assert settings(lines)[0] == "--remat=cell"
  assert len(settings(lines)) == 3


def test_an_option_of_the_schedule_is_taken_back_with_it():
  shape = {"num_partitions": 2, "num_micro_batches": 4, "stages_per_device": 2}
  _, lines = advice(1300, layers=layers(), schedule="interleaved", **shape)
  assert "--schedule=1f1b --stages_per_device=0" in settings(lines)


def test_if_no_single_knob_is_enough_partitions_and_remat_are_tried_together():
  # A layer has 800 bytes of weights and sums, and keeps 200 of each of 12 micro-
  # batches: on one device 3,200 with any remat, on four 800 + 2,400 without.
  shape = {"num_partitions": 1, "num_micro_batches": 12}
  _, lines = advice(1800, layers=layers(4, weights=100, inside=200), **shape)
  assert settings(lines) == ["--num_partitions=4 --remat=cell"]


def test_a_layer_that_alone_is_too_large_is_named():
  made = layers(3, weights=10)
  made[1].weights = 1000
  _, lines = advice(5000, layers=made, num_partitions=3)
  # 4,000 bytes of weights, and as many of gradients.
  assert lines[1:] == [
    "no setting makes it fit: layer 'layer_1' alone needs 7.8 KiB for weights, slots "
    "and gradients"
  ]


def test_if_nothing_helps_the_largest_layer_is_named():
  _, lines = advice(1, layers=layers(3), num_partitions=3, num_micro_batches=12)
  assert lines[1].startswith(
    "no setting tried makes it fit; the largest layer, 'layer_0'"
  )


def test_the_trials_are_bounded_and_it_says_so(monkeypatch):
  monkeypatch.setattr(knobs, "_BUDGET", 40)
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  _, lines = advice(1000, layers=layers(), **shape)
  assert lines[-1].endswith("settings were not tried: planning them takes too long")


def test_the_least_number_of_partitions_is_found_without_planning_those_before():
  # 40 layers of 8 bytes of weights and sums and 4 of new gradients; 12 of borders.
  made = layers(40, weights=1000, inside=1)
  _, lines = advice(5 * 12_000, layers=made, num_partitions=1, num_micro_batches=12)
  assert settings(lines)[-1] in ("--num_partitions=10", "--num_partitions=13")


def test_knobs_are_turned_together_if_it_takes_all_of_them():
  # A layer has 8,000 bytes of weights and sums, 4,000 of new gradients, and keeps 2,000
  # of each example: no two fit, nor more than one example at a time.
  made = layers(8, weights=1000, inside=2000)
  shape = {"num_partitions": 2, "num_micro_batches": 2, "schedule": "gpipe"}
  _, lines = advice(15_000, layers=made, **shape)
  assert settings(lines) == [
    "--num_partitions=8 --num_micro_batches=12 --schedule=1f1b --remat=cell"
  ]
