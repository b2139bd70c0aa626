import math

import pytest

from tests.priced import BATCH, Priced, PricedLoss, PricedTask, network, params
from tests.program import training
from tests.program.training import IMAGE, TEXT
from tfpipe import partition, plan, schedule
from tfpipe.hardware import Hardware
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.optimizers import Learner
from tfpipe.schedule import text

# A FLOP takes half a second; a byte 1/8 of one, after 3 seconds.
SLOW = Hardware("slow", 10**6, 4.0, "float32", 8.0, link_latency_secs=3, efficiency=0.5)


def test_the_table_has_a_line_for_each_cell():
  layers = [
    Priced.Params().Set(name="stem", flops=1000, weights=1200, width=256),
    Priced.Params().Set(name="body", flops=2000, weights=34, width=512),
    Priced.Params().Set(name="tail", flops=500, width=64),
    PricedLoss.Params().Set(name="loss", flops=1500, weights=5_600_000),
  ]
  p = params(layers=layers, num_partitions=2, num_micro_batches=3, remat="cell")
  made = plan.make(p)
  # Micro-batches of 4; a border of 4 · 512 numbers of 4 bytes; the loss gives two.
  assert plan.table(made).splitlines() == [
    "cell  layers  from  to    weights  FLOPs       share  border",
    "0     2       stem  body  1.2K     12.0 kFLOP  60.0%  8.0 KiB",
    "1     2       tail  loss  5.6M     8.0 kFLOP   40.0%  8 B",
  ]
  # F, B, W, R of the cells: 3 + 2 + 3 + 3 kFLOP for each example, and 2 + 2 + 1.5 + 2.
  assert made.imbalance == pytest.approx(11 / 9.25)
  assert plan.summary(made).startswith(
    "4 layers, 5.6M weights; schedule gpipe+R, 2 cells x 3 micro-batches; predicted "
    "bubble "
  )
  assert plan.summary(made).endswith("%, busiest device 1.19 x the mean")


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("remat", ["none", "layer"])
def test_the_bubble_of_equal_stages_is_that_of_the_paper(name, remat):
  # GPipe, section 2.3: (K - 1) / (M + K - 1).
  for k in (1, 2, 3, 4, 6):
    for m in (1, 2, 3, 4, 6, 12):
      shape = {"num_partitions": k, "num_micro_batches": m}
      made = plan.make(params(*[7] * k, schedule=name, remat=remat, **shape))
      assert made.bubble == pytest.approx((k - 1) / (m + k - 1), abs=1e-12), shape


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_auto"])
def test_the_last_stage_gets_more_layers_where_it_computes_nothing_again(name):
  # Of 4 units a layer, 3 remain on the last stage: 6 · 4 = 8 · 3, where 7 and 7 layers
  # take 28 and 21.
  shape = {"num_partitions": 2, "num_micro_batches": 4, "schedule": name}
  made = plan.make(params(*[2] * 14, remat="cell", **shape))
  assert made.cells == ((0, 7), (7, 15))  # the first one is free
  assert made.imbalance == 1
  # GPipe's computes all but the last micro-batch again: 7 · 16 and 7 · 15 units.
  made = plan.make(params(*[2] * 14, remat="cell", **{**shape, "schedule": "gpipe"}))
  assert made.cells == ((0, 8), (8, 15))


def test_recomputation_in_waiting_time_makes_the_bubble_smaller():
  # Device 0 has R0 done before its gradient comes:
  #   0: F0 F1 R0 .. .. .. BW0 BW0 R1 BW1 BW1
  #   1: .. F0 F1 R0 BW0 BW0 R1 BW1 BW1 .. ..
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  made = plan.make(params(3, 3, remat="cell", **shape))
  assert made.bubble == pytest.approx(6 / 22)
  assert made.timeline.makespan == 11 * 3 * BATCH / 2


def test_a_backward_takes_two_forwards_and_three_if_each_layer_is_computed_again():
  for remat, forwards in (("none", 3), ("cell", 4), ("layer", 4)):
    made = plan.make(params(5, remat=remat, num_micro_batches=2))
    assert made.timeline.makespan == forwards * 5 * BATCH


def test_what_is_still_there_is_not_computed_again():
  # Of 1F1B, device 1 does backwards right behind their forwards:
  #   0: F0 F1 R0 .. BW0 BW0 R1 BW1 BW1
  #   1: .. F0 BW0 BW0 F1 BW1 BW1 .. ..
  shape = {"num_partitions": 2, "num_micro_batches": 2, "schedule": "1f1b"}
  made = plan.make(params(3, 3, remat="cell", **shape))
  counts = [sum(a.kind == "R" for a in own) for own in made.schedule.actions]
  assert counts == [2, 0]
  assert made.timeline.makespan == 9 * 3 * BATCH / 2


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
  made = plan.make(params(9, 1, 1, 1, num_partitions=2, lengths=(4, 1)))
  assert made.cells == ((0, 4), (4, 5))
  assert made.imbalance == pytest.approx(11 * 2 / 12)
  balanced = plan.make(params(9, 1, 1, 1, num_partitions=2))
  assert balanced.cells == ((0, 2), (2, 5))


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_the_plan_counts_the_variables_that_are_created_on_each_device(tf, name):
  run = training.make_run(name, "pipeline.num_partitions=3")
  trainable = run.pipeline.trainable()
  state = run.learner.state()

  def size(variables):
    return 4 * sum(math.prod(v.shape) for v in variables)

  for device, row in zip(run.devices, run.plan.stages, strict=True):
    costs = run.plan.costs[slice(*run.plan.cells[row.stage])]
    here = {n: v for n, v in run.pipeline.weights.items() if device in v.device}
    assert sum(cost.param_bytes for cost in costs) == size(here.values())
    learned = [v for n, v in here.items() if n in trainable]
    assert 4 * sum(cost.param_count for cost in costs) == size(learned)
    for kind, predicted in (("slots/", row.slots), ("ema/", row.averages)):
      made = [v for n, v in state.items() if n.startswith(kind) and device in v.device]
      assert predicted == size(made), kind
    # A weight of another device that the stage uses is copied, and has a sum here.
    assert row.weights >= size(here.values())
    assert row.accumulators >= size(learned)


def test_costs_are_those_of_a_micro_batch():
  whole = plan.make(params(7, 11))
  parts = plan.make(params(7, 11, num_micro_batches=4))
  assert [cost.flops for cost in whole.costs] == [0, 7 * BATCH, 11 * BATCH]
  assert [cost.flops for cost in parts.costs] == [0, 7 * BATCH / 4, 11 * BATCH / 4]


def test_nobody_needs_the_gradient_at_the_input_of_the_network():
  first, last = (cls.Params().Set(flops=5, weights=1) for cls in (Priced, PricedLoss))
  made = plan.make(params(layers=[first.Set(name="a"), last.Set(name="b")]))
  assert made.times.forward == (10 * BATCH,)
  assert made.times.input_gradient == (5 * BATCH,)
  assert made.times.weight_gradient == (10 * BATCH,)


def test_a_cut_is_made_by_all_that_a_layer_takes_not_by_its_forward():
  # Without weights there is no W: 2, 3, 3, 6 in place of 1, 1, 1, 3.
  layers = network(1, 1, 1, 3)
  layers[1].weights = 0
  layers[4].weights = 0
  made = plan.make(params(layers=layers, num_partitions=2))
  # 0 + 2 + 3 + 3 | 6; by forwards it would be 3 | 3 as well, so by remat:
  assert made.cells == ((0, 4), (4, 5))
  layers = network(4, 2, 2)
  layers[1].weights = 0  # 4 + 4 | 6 + 6, where by forwards 4 | 2 + 2
  made = plan.make(params(layers=layers, num_partitions=2))
  assert made.cells == ((0, 2), (2, 4))


@pytest.mark.parametrize("name", schedule.NAMES)
@pytest.mark.parametrize("remat", ["none", "cell", "layer"])
def test_every_schedule_is_planned(name, remat):
  shape = {"num_partitions": 2, "num_micro_batches": 4}
  made = plan.make(params(*[1] * 8, schedule=name, remat=remat, **shape))
  assert len(made.cells) == made.schedule.num_stages
  assert made.schedule.num_devices == 2
  assert {row.device for row in made.stages} == {0, 1}
  assert min(made.device_bytes) > 0
  assert made.too_small == ()
  assert set(made.activations) == {remat, "cell" if remat == "none" else "none"}
  assert plan.table(made).count("\n") == len(made.cells)


def test_a_schedule_s_options_come_from_the_params():
  p = params(*[1] * 12, schedule="interleaved", stages_per_device=3, num_partitions=2)
  p.pipeline.Set(num_micro_batches=4, group_size=4)
  made = plan.make(p)
  assert len(made.cells) == 6
  expected = schedule.make("interleaved", 2, 4, stages_per_device=3, group_size=4)
  assert made.schedule == expected
  p = params(1, 1, schedule="chimera", num_pairs=1, num_partitions=2)
  assert len(plan.make(p.Set(**{"pipeline.num_micro_batches": 2})).stages) == 4


def test_the_table_names_the_devices_of_a_cell_if_they_share_or_split():
  shape = {"num_partitions": 2, "num_micro_batches": 4}
  vee = plan.make(params(*[1] * 4, schedule="zb_v", **shape))
  rows = [line.split()[:2] for line in plan.table(vee).splitlines()]
  assert rows == [["cell", "device"], ["0", "0"], ["1", "1"], ["2", "1"], ["3", "0"]]
  assert "4 cells on 2 devices x 4 micro-batches" in plan.summary(vee)
  twice = plan.make(params(1, 1, schedule="chimera", **shape))
  rows = [line.split()[:2] for line in plan.table(twice).splitlines()]
  assert rows == [["cell", "device"], ["0", "0,1"], ["1", "1,0"]]


def test_a_schedule_of_the_user_comes_from_a_file(tmp_path):
  path = tmp_path / "mine.csv"
  path.write_text(text.to_csv(schedule.make("1f1b", 2, 4)))
  shape = {"schedule": str(path), "num_partitions": 2}
  made = plan.make(params(1, 1, num_micro_batches=4, **shape))
  assert made.schedule == schedule.make("1f1b", 2, 4)
  with pytest.raises(ValueError, match=r"mine.csv: num_micro_batches is 3, but .* 4"):
    plan.make(params(1, 1, num_micro_batches=3, **shape))
  with pytest.raises(
    ValueError, match=r"mine.csv: the file has no rec.*: expected remat=none"
  ):
    plan.make(params(1, 1, num_micro_batches=4, remat="cell", **shape))
  missing = str(tmp_path / "yours.json")
  with pytest.raises(
    LookupError, match=r"pipeline.schedule='.*yours.json': there is no"
  ):
    plan.make(params(1, 1, schedule=missing))


def test_zb_auto_is_made_for_the_times_of_the_run():
  shape = {"num_partitions": 2, "num_micro_batches": 6}
  auto = plan.make(params(3, 1, 2, schedule="zb_auto", **shape))
  assert auto.schedule.name == "zb_auto"
  schedule.validate(auto.schedule)
  for name in ("zb_h1", "zb_h2"):
    fixed = plan.make(params(3, 1, 2, schedule=name, **shape))
    assert auto.timeline.makespan <= fixed.timeline.makespan
  auto = plan.make(params(*[1] * 4, schedule="zb_auto", stages_per_device=2, **shape))
  assert len(auto.cells) == 4
  # What is trained, without a name of hardware, is what was planned with one.
  p = params(3, 1, 2, schedule="zb_auto", remat="cell", **shape)
  assert plan.make(p).schedule == plan.make(p, SLOW).schedule


def test_with_hardware_a_step_has_seconds_and_transfers():
  shape = {"num_partitions": 2, "num_micro_batches": 1}
  made = plan.make(params(5, 5, batch=1, **shape), SLOW)
  # F 2.5 s; a number of 4 bytes is on its way for 3.5 s; BW 5 s.
  assert made.step_secs == 2.5 + 3.5 + 2.5 + 5 + 3.5 + 5
  assert plan.make(params(5, 5, batch=1, **shape)).step_secs is None
  assert "predicted step 22 s, bubble " in plan.summary(made)
  (note,) = made.notes
  assert note == "times are FLOPs at 50% of the peak of slow, 4 FLOP/s in float32"


def test_the_update_of_a_copied_stage_takes_its_weights_there_and_gradients_back():
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  made = plan.make(params(5, 5, batch=2, schedule="chimera", **shape), SLOW)
  # One weight of 4 bytes each way: twice 3.5 s.
  assert made.times.update == (7, 7)
  updates = [span for span in made.timeline.spans if span.action.kind == "U"]
  assert sorted(span.end - span.start for span in updates) == [0, 0, 7, 7]
  straight = plan.make(params(5, 5, batch=2, schedule="gpipe", **shape), SLOW)
  assert straight.times.update == (0, 0)
  # Of four copies, three have the weights from one and send it their gradients.
  shape = {"num_partitions": 4, "num_micro_batches": 4, "num_pairs": 2}
  made = plan.make(params(*[5] * 4, batch=4, schedule="chimera", **shape), SLOW)
  assert made.times.update == (3 * 7,) * 4


def test_devices_that_are_too_small_are_known():
  shape = {"num_partitions": 2, "num_micro_batches": 1}
  made = plan.make(params(5, 5, **shape), SLOW)
  assert made.too_small == ()
  need = made.device_bytes
  assert need[0] > need[1]  # it has the pictures
  small = Hardware("small", need[0] - 1, 1.0, "float32", 1.0)
  assert plan.make(params(5, 5, **shape), small).too_small == (0,)
  enough = Hardware("enough", need[0], 1.0, "float32", 1.0)
  assert plan.make(params(5, 5, **shape), enough).too_small == ()


class _TextTask(PricedTask):
  INPUT_FIELDS = ("images",)


class _SideLoss(PricedLoss):
  SIDE_INPUTS = ("labels",)


@pytest.mark.parametrize(
  ("bad", "message"),
  [
    (
      lambda: params(layers=[Priced.Params(), PricedLoss.Params().Set(name="loss")]),
      r"^PricedTask.Layers\(\)\[0\].name='': must be a text, and not empty$",
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
    (lambda: params(1, 1, num_partitions=4), "num_partitions=4: must be at most .*, 3"),
    (
      lambda: params(1, 1, num_partitions=2, num_micro_batches=2, schedule="zb_v"),
      "num_partitions=2 with schedule zb_v makes 4 cells: must be at most the .*, 3",
    ),
    (
      lambda: params(1, num_partitions=2, schedule="zb_auto", stages_per_device=2),
      "=2 times pipeline.stages_per_device=2 with schedule zb_auto makes 4 cells: .*2",
    ),
    (
      lambda: params(1, batch=9000, num_micro_batches=9000, schedule="zb_auto"),
      "num_micro_batches=9000 with schedule zb_auto: must be at most 8192 with 1 st",
    ),
    (lambda: params(1, num_micro_batches=5), "=5 does not divide .*=12; .* is 4"),
    (lambda: params(1, devices="CPU:0,CPU:1"), "names 2 devices; the schedule needs 1"),
    (lambda: params(1, lengths=(3,)), r"pipeline.lengths=\(3,\): .* add up to 3, but"),
    (
      lambda: params(1, 1, lengths=(2, 1)),
      r"pipeline.lengths=\(2, 1\): must be empty or hold a number of layers, at least "
      "1, for each of the 1 cells of num_partitions=1",
    ),
    (
      lambda: params(
        *[1] * 4, lengths=(3, 2), num_partitions=2, num_micro_batches=4, schedule="zb_v"
      ),
      r"pipeline.lengths=\(3, 2\): must .* for each of the 4 cells of num_partitions=2",
    ),
    (
      lambda: params(*[1] * 4, num_partitions=3, schedule="chimera"),
      "num_partitions=3 with schedule chimera: must be an even number >= 2",
    ),
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
