"""Plans from times that were measured."""

import pytest

from tests.priced import BATCH, params
from tests.test_plan import SLOW
from tfpipe import layer_times, plan, schedule
from tfpipe.layer_times import Crowding, LayerTime, LayerTimes
from tfpipe.schedule import text

NONE = Crowding()


def measured(
  tmp_path,
  *secs,
  names=("entry", "layer_0", "loss"),
  batch=BATCH,
  end=0.0,
  crowding=NONE,
):
  path = tmp_path / "times.json"
  layers = [LayerTime(name, *times) for name, times in zip(names, secs, strict=True)]
  layer_times.write(path, LayerTimes("a CPU", batch, tuple(layers), end, crowding))
  return str(path)


def test_measured_times_decide_on_cut_and_step(tmp_path):
  path = measured(tmp_path, (9, 0, 0), (2, 3, 4), (1, 1, 1))
  p = params(1, 100, num_partitions=2)
  assert plan.make(p).cells == ((0, 2), (2, 3))
  p.pipeline.layer_times = path
  made = plan.make(p)
  assert made.cells == ((0, 1), (1, 3))
  assert made.step_secs == 9 + 3 + 9
  assert made.notes == ("times were measured on a CPU",)
  # On other devices only the way is known.
  assert plan.make(p, SLOW).step_secs == 9 + 3 + 9 + 2 * (3 + 4 * BATCH / 8)
  p.pipeline.num_micro_batches = 2
  made = plan.make(p)
  assert made.times.forward == (4.5, 1.5)
  assert made.notes[0].endswith("on a CPU with 12 rows, and scaled to 6")


def test_what_is_computed_again_counts_in_the_cut(tmp_path):
  # 6, 5 and 7 units of work; with recomputation 12, 6 and 8.
  path = measured(tmp_path, (6, 0, 0), (1, 2, 2), (1, 3, 3))
  # GPipe computes no cell again for a single micro-batch, and all of them for two.
  p = params(1, 1, num_partitions=2, layer_times=path)
  for remat, num_micro_batches, cells in (
    ("none", 2, ((0, 2), (2, 3))),
    ("cell", 1, ((0, 2), (2, 3))),
    ("cell", 2, ((0, 1), (1, 3))),
    ("layer", 1, ((0, 1), (1, 3))),
  ):
    p.pipeline.Set(remat=remat, num_micro_batches=num_micro_batches)
    assert plan.make(p).cells == cells


@pytest.mark.parametrize(
  ("name", "remat", "factor"),
  [
    # 4 on each device; 2 and 1; none is kept longer than from R to BW: 1 and 1.
    ("gpipe", "none", 3.0),
    ("1f1b", "none", 1.5),
    ("gpipe", "cell", 1.0),
  ],
)
def test_what_a_schedule_keeps_in_flight_slows_all_but_the_update(
  tmp_path, name, remat, factor
):
  path = measured(
    tmp_path,
    *[(1, 2, 3, 4)] * 3,
    batch=BATCH // 4,
    end=2,
    crowding=Crowding(1.0, 3.0, 3.0),
  )
  p = params(1, 1, num_partitions=2, num_micro_batches=4, layer_times=path)
  p.pipeline.Set(schedule=name, remat=remat)
  made = plan.make(p)
  times = made.times
  note = f"; actions take {factor:g} times as long, for the micro-batches in flight"
  assert any(row.endswith(note) for row in made.notes) == (factor != 1)
  assert times.forward == (factor, 2 * factor)
  assert times.backward == (5 * factor, 10 * factor)
  assert times.update == (4 + 2, 8 + 2)


def test_each_device_updates_its_layers_after_its_last_backward(tmp_path):
  path = measured(tmp_path, (9, 0, 0, 5), (2, 3, 4, 6), (1, 1, 1, 7))
  made = plan.make(params(1, 1, num_partitions=2, layer_times=path))
  assert made.times.update == (5, 6 + 7)
  assert made.step_secs == 9 + 3 + 9 + 13


def test_the_end_of_a_step_is_on_every_device_once(tmp_path):
  path = measured(tmp_path, (9, 0, 0, 5), (2, 3, 4, 6), (1, 1, 1, 7), end=2)
  made = plan.make(params(1, 1, num_partitions=2, layer_times=path))
  assert made.times.update == (5 + 2, 13 + 2)
  assert made.step_secs == 9 + 3 + 9 + 15
  looped = params(2, 2, 2, num_partitions=2, num_micro_batches=2, layer_times=path)
  looped.pipeline.Set(schedule="looped_bfs", stages_per_device=2)
  path = measured(
    tmp_path, *[(1, 1, 1)] * 4, names=("entry", "layer_0", "layer_1", "loss"), end=2
  )
  assert plan.make(looped).times.update == (1, 1, 1, 1)
  # Stages 0 and 2 on device 0, stage 1 on device 1.
  one, two = (
    tuple(schedule.Action(kind, stage, 0) for kind, stage in steps)
    for steps in (
      [("F", 0), ("F", 2), ("BW", 2), ("BW", 0), ("U", 0), ("U", 2)],
      [("F", 1), ("BW", 1), ("U", 1)],
    )
  )
  own = schedule.Schedule("own", 3, 1, ((0, 1, 0),), (one, two))
  (tmp_path / "own.json").write_text(text.to_json(own))
  looped.pipeline.Set(
    schedule=str(tmp_path / "own.json"), stages_per_device=0, num_micro_batches=1
  )
  assert plan.make(looped).times.update == (1, 2, 1)


def test_a_weight_is_updated_once_whatever_copies_it_has(tmp_path):
  path = measured(tmp_path, (9, 0, 0, 5), (2, 3, 4, 6), (1, 1, 1, 7), end=2)
  p = params(1, 1, num_partitions=2, num_micro_batches=2, layer_times=path)
  gpipe = plan.make(p)
  p.pipeline.schedule = "chimera"
  found, expected = (
    [
      sum(
        s.end - s.start
        for s in made.timeline.spans
        if (s.device, s.action.kind) == (d, "U")
      )
      for d in (0, 1)
    ]
    for made in (plan.make(p), gpipe)
  )
  assert found == expected == [5 + 2, 13 + 2]


def test_both_gradients_at_once_take_their_own_time_unless_they_are_split(tmp_path):
  # F, B, W, update, BW
  path = measured(tmp_path, (9, 0, 4, 0, 3), (2, 3, 4, 0, 6), (1, 1, 1, 0, 2))
  p = params(1, 1, layer_times=path)
  assert plan.make(p).step_secs == 12 + 11
  p.pipeline.Set(schedule="zb_h1")
  assert plan.make(p).step_secs == 12 + 4 + 9
  p.pipeline.Set(schedule="gpipe", remat="layer")
  assert plan.make(p).step_secs == 12 + 12 + 11


def test_measured_times_of_another_network_are_refused(tmp_path):
  path = measured(tmp_path, *[(1, 1, 1)] * 3, names=("entry", "layer_1", "loss"))
  message = r"pipeline.layer_times='.*times.json': layer 'layer_1' is none .*'layer_0'"
  with pytest.raises(ValueError, match=message):
    plan.make(params(1, 1, layer_times=path))
  with pytest.raises(
    LookupError, match=r"layer times 'nowhere.json': there is no such"
  ):
    plan.make(params(1, 1, layer_times="nowhere.json"))


def test_times_too_long_once_they_are_scaled_are_refused_with_their_file(tmp_path):
  path = measured(tmp_path, (9e99, 0, 0), (1, 1, 1), (1, 1, 1), batch=1)
  message = (
    r"pipeline.layer_times='.*times.json': layer 'entry': forward is 1\.08e\+101"
  )
  with pytest.raises(ValueError, match=message):
    plan.make(params(1, 1, layer_times=path))
