import math

import pytest

from tests.program import training
from tests.program.training import IMAGE, TEXT
from tfpipe import model, partition, plan
from tfpipe.cost import ArraySpec
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.nested_map import NestedMap
from tfpipe.optimizers import Learner
from tfpipe.task import Task

BATCH, SIDE = 12, 5


class Priced(Layer):
  """Costs what its Params say; gives [batch, width]."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("flops", 0, "For each example.")
    p.Define("weights", 0, "Number of weights.")
    p.Define("width", 1, "Numbers for each example that it gives.")
    return p

  def __init__(self, params):
    super().__init__(params)
    if params.flops < 0:
      raise ValueError(f"Priced.flops = {params.flops}: it must be at least 0")
    if params.weights:
      self.CreateVariable("w", WeightParams((params.weights,)))

  @classmethod
  def FPropMeta(cls, params, *inputs):
    rows = inputs[0].shape[0]
    out = ArraySpec((rows, params.width))
    return cls.Cost(params, out, flops=params.flops * rows)


class PricedLoss(Priced):
  SIDE_INPUTS = ("label",)

  @classmethod
  def FPropMeta(cls, params, *inputs):
    x, side = inputs
    scalar = ArraySpec(())
    out = NestedMap(loss=(scalar, scalar))
    assert list(side) == ["label"]
    assert side.label.shape == x.shape[:1]
    return cls.Cost(params, out, flops=params.flops * x.shape[0])


class PricedTask(Task):
  INPUT_FIELDS = ("image",)

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("layers", [], "Params of the layers.")
    return p

  def Layers(self):
    return self.params.layers


def params(*flops, layers=None, task=PricedTask, **pipeline):
  """Gives a run whose layers cost so many operations for each example."""
  if layers is None:
    layers = [
      Priced.Params().Set(name=f"layer_{i}", flops=cost)
      for i, cost in enumerate(flops[:-1])
    ]
    layers.append(PricedLoss.Params().Set(name="loss", flops=flops[-1]))
  p = model.ModelParams(
    "priced",
    task.Params().Set(layers=layers),
    SyntheticImageInput.Params().Set(batch_size=BATCH, image_size=SIDE),
    None,
  )
  p.pipeline.Set(**pipeline)
  return p


def test_the_table_has_a_line_for_each_cell():
  layers = [
    Priced.Params().Set(name="stem", flops=1000, weights=1200, width=256),
    Priced.Params().Set(name="body", flops=2000, weights=34, width=512),
    Priced.Params().Set(name="tail", flops=500, width=64),
    PricedLoss.Params().Set(name="loss", flops=1500, weights=5_600_000),
  ]
  made = plan.make(params(layers=layers, num_partitions=2, num_micro_batches=3))
  # Micro-batches of 4; a border of 4 · 512 numbers of 4 bytes; the loss gives two.
  assert plan.table(made).splitlines() == [
    "cell  layers  from  to    weights  FLOPs       share  border",
    "0     2       stem  body  1.2K     12.0 kFLOP  60.0%  8.0 KiB",
    "1     2       tail  loss  5.6M     8.0 kFLOP   40.0%  8 B",
  ]
  assert made.imbalance == 1.2
  assert plan.summary(made).startswith(
    "4 layers, 5.6M weights; schedule gpipe+R, 2 cells x 3 micro-batches; predicted "
    "bubble "
  )
  assert plan.summary(made).endswith("%, slowest cell 1.20 x the mean")


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("remat", ["none", "layer"])
def test_the_bubble_of_equal_stages_is_that_of_the_paper(name, remat):
  # GPipe, section 2.3: (K - 1) / (M + K - 1).
  for k in (1, 2, 3, 4, 6):
    for m in (1, 2, 3, 4, 6, 12):
      shape = {"num_partitions": k, "num_micro_batches": m}
      made = plan.make(params(*[7] * k, schedule=name, remat=remat, **shape))
      assert made.bubble == pytest.approx((k - 1) / (m + k - 1), abs=1e-12), shape


def test_recomputation_in_waiting_time_makes_the_bubble_smaller():
  # Device 0 has R0 done before its gradient comes:
  #   0: F0 F1 R0 .. .. .. BW0 BW0 R1 BW1 BW1
  #   1: .. F0 F1 R0 BW0 BW0 R1 BW1 BW1 .. ..
  made = plan.make(params(3, 3, num_partitions=2, num_micro_batches=2, remat="cell"))
  assert made.bubble == pytest.approx(6 / 22)
  assert made.timeline.makespan == 11 * 3 * BATCH / 2


def test_a_backward_takes_two_forwards_and_three_if_each_layer_is_computed_again():
  for remat, forwards in (("none", 3), ("cell", 4), ("layer", 4)):
    made = plan.make(params(5, remat=remat))
    assert made.timeline.makespan == forwards * 5 * BATCH


def test_layers_without_any_cost_can_be_planned():
  made = plan.make(params(0, 0, num_partitions=2))
  assert (made.bubble, made.imbalance) == (0.0, 1.0)
  assert "0.0%" in plan.table(made)


def test_totals_are_the_same_for_every_cut():
  for name in (IMAGE, TEXT):
    experiment = training.trainer.model_params(name, [])
    totals = set()
    for k in range(1, 5):
      experiment.pipeline.num_partitions = k
      made = plan.make(experiment)
      assert len(made.cells) == k
      assert [c for start, end in made.cells for c in made.costs[start:end]] == list(
        made.costs
      )
      totals.add(
        (
          sum(cost.param_count for cost in made.costs),
          sum(partition.loads([cost.flops for cost in made.costs], made.cells)),
        )
      )
    assert len(totals) == 1


def test_explicit_lengths_are_taken_as_they_are():
  made = plan.make(params(9, 1, 1, 1, num_partitions=2, lengths=(3, 1)))
  assert made.cells == ((0, 3), (3, 4))
  assert made.imbalance == pytest.approx(11 * 2 / 12)
  balanced = plan.make(params(9, 1, 1, 1, num_partitions=2))
  assert balanced.cells == ((0, 1), (1, 4))


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_the_plan_counts_the_weights_that_are_created_on_each_device(tf, name):
  run = training.make_run(name, "pipeline.num_partitions=3")
  trainable = run.pipeline.trainable()
  for device, (start, end) in zip(run.devices, run.plan.cells, strict=True):
    costs = run.plan.costs[start:end]
    here = {n: v for n, v in run.pipeline.weights.items() if device in v.device}
    sizes = {n: math.prod(v.shape) for n, v in here.items()}
    assert sum(cost.param_bytes for cost in costs) == 4 * sum(sizes.values())
    counted = sum(size for n, size in sizes.items() if n in trainable)
    assert sum(cost.param_count for cost in costs) == counted


def test_costs_are_those_of_a_micro_batch():
  whole = plan.make(params(7, 11))
  parts = plan.make(params(7, 11, num_micro_batches=4))
  assert [cost.flops for cost in whole.costs] == [7 * BATCH, 11 * BATCH]
  assert [cost.flops for cost in parts.costs] == [7 * BATCH / 4, 11 * BATCH / 4]


class _TextTask(PricedTask):
  INPUT_FIELDS = ("images",)


class _SideLoss(PricedLoss):
  SIDE_INPUTS = ("labels",)


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    (
      lambda: params(layers=[Priced.Params(), PricedLoss.Params().Set(name="loss")]),
      "layer 0 of the task has no name",
    ),
    (
      lambda: params(layers=[Priced.Params().Set(name="a")] * 2),
      "two layers of the task are named 'a'",
    ),
    (
      lambda: params(layers=[Priced.Params().Set(name="a")]),
      "the last layer, 'a', must return metrics with 'loss' among them",
    ),
    (
      lambda: params(1, task=_TextTask),
      "the task reads 'images'; the input gives .*; did you mean 'image'",
    ),
    (
      lambda: params(layers=[_SideLoss.Params().Set(name="loss")]),
      "layer 'loss' reads 'labels'; the input gives .*; did you mean 'label'",
    ),
    (
      lambda: params(layers=[BatchNorm.Params().Set(name="norm", dim=2)]),
      "norm: got 1 channels, expected 2",
    ),
    (lambda: params(-1, 0), "Priced.flops = -1: it must be at least 0"),
    (lambda: params(1, 1, num_partitions=3), "num_partitions=3: must be at most .*, 2"),
    (lambda: params(1, num_micro_batches=5), "=5 does not divide .*=12; .* is 4"),
    (lambda: params(1, devices="CPU:0,CPU:1"), "names 2 devices; the schedule needs 1"),
    (lambda: params(1, lengths=(2,)), r"lengths \[2\] add up to 2, but there are 1 la"),
  ],
)
def test_what_does_not_fit_is_refused(bad, message):
  with pytest.raises(ValueError, match=message):
    plan.make(bad())


def test_the_learner_is_checked_although_no_plan_depends_on_it():
  p = params(1)
  p.task.learner = Learner.Params().Set(learning_rate=-1.0)
  with pytest.raises(ValueError, match=r"Learner.learning_rate = -1.0"):
    plan.make(p)


def test_the_evaluation_input_must_fit_as_well():
  p = params(1, num_micro_batches=3)
  p.eval_input = SyntheticImageInput.EvalParams().Set(batch_size=8)
  with pytest.raises(ValueError, match=r"=3 does not divide eval_input.batch_size=8"):
    plan.make(p)
  p.eval_input = SyntheticTextInput.EvalParams().Set(batch_size=6)
  with pytest.raises(ValueError, match="the task reads 'image'; the input gives ids"):
    plan.make(p)
