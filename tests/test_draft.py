import json

import pytest

from tests.priced import Priced, network, params
from tfpipe import draft, memory, plan, schedule
from tfpipe.network import Network
from tfpipe.schedule import text


def drafted(*flops, **pipeline):
  p = params(*flops, **pipeline)
  return draft.make(p.pipeline, Network(p))


def test_the_effort_is_near_to_the_number_of_actions():
  for name in schedule.NAMES:
    p = params(*[1] * 16, schedule=name, num_partitions=4, num_micro_batches=12)
    made = draft.make(p.pipeline, Network(p)).schedule
    number = sum(map(len, made.actions))
    assert number / 2 < draft.effort(p.pipeline) <= 4 * number, name


def test_the_device_that_needs_most_is_found_or_one_beyond_a_limit():
  made = drafted(5, 5, 5, num_partitions=3, num_micro_batches=2)
  needs = memory.of_devices(made.memory())
  assert made.most_bytes() == max(needs)
  assert made.most_bytes(max(needs)) == max(needs)
  assert made.most_bytes(min(needs) - 1) == needs[0]
  one = drafted(
    5, 5, 5, num_partitions=3, num_micro_batches=2, devices="CPU:0,CPU:1,CPU:0"
  )
  assert one.most_bytes() == max(needs[0] + needs[2], needs[1])


def lengths(made):
  return [end - start for start, end in made.cells]


def test_layers_are_cut_by_what_each_stage_computes_again():
  # `entry` is free; of the others F and B take 1 each, and W where there are weights.
  # M=1: nothing is computed again. 9 layers take 3 each, 14 without weights 2 each: 27
  # and 28. With R, which makes 4 and 3 of these, 39 and 39 would be best: one further.
  half = [Priced.Params().Set(name=f"half_{i}", flops=1) for i in range(13)]
  layers = [*network(*[1] * 10)[:-1], *half, network(1, weights=0)[-1]]
  assert lengths(drafted(layers=layers, num_partitions=2, remat="cell")) == [10, 14]
  # Looped BFS, K=2, M=2: stages 0 and 1 compute both micro-batches again, 2 and 3 the
  # first only: 8 a layer, or 7.
  shape = {"num_partitions": 2, "num_micro_batches": 2, "remat": "cell"}
  looped = drafted(*[1] * 30, schedule="looped_bfs", **shape)
  assert lengths(looped) == [8, 7, 8, 8]  # 56, 56, 56, 56


def test_layers_are_cut_by_the_times_of_the_backward_that_is_run(tmp_path):
  # BW takes 1, but B and W 1 each where they are two actions, of the first two layers.
  split = {"forward": 1, "input_gradient": 1, "weight_gradient": 1, "update": 0}
  path = tmp_path / "times.json"
  rows = [
    {"name": name, **split, "backward": 1 if index < 2 else 2}
    for index, name in enumerate(["entry", "layer_0", "layer_1", "layer_2", "loss"])
  ]
  times = {"device": "", "batch": 6, "layers": rows, "end": 0}
  path.write_text(json.dumps(times))
  p = params(1, 1, 1, 1, num_partitions=2, num_micro_batches=2, layer_times=str(path))
  # As BW: 2 2 3 3 3, with 7 and 6 as the best; split: 3 each, with 6 and 9.
  for name, expected in (("1f1b", [3, 2]), ("zb_h1", [2, 3])):
    p.pipeline.schedule = name
    assert lengths(draft.make(p.pipeline, Network(p))) == expected


def test_a_schedule_may_lie_in_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "a.json").write_text(text.to_json(schedule.make("1f1b", 2, 2)))
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  made = drafted(1, 1, schedule="~/a.json", **shape)
  assert made.schedule == schedule.make("1f1b", 2, 2)


def test_a_schedule_of_several_updates_is_not_planned(tmp_path):
  # Two micro-batches, each with its own update.
  actions = [
    schedule.Action(kind, 0, m, 0, 1, 0 if kind == "U" else m)
    for m in (0, 1)
    for kind in ("F", "BW", "U")
  ]
  two = schedule.Schedule("two", 1, 2, ((0,),), (tuple(actions),))
  schedule.validate(two)
  path = tmp_path / "two.csv"
  path.write_text(text.to_csv(two))
  with pytest.raises(
    ValueError, match=r"two.csv': schedule two has 2 updates; one can"
  ):
    plan.make(params(1, 1, schedule=str(path), num_micro_batches=2))


def test_too_many_cells_are_refused_before_a_schedule_is_made(monkeypatch):
  monkeypatch.setattr(schedule, "make", None)
  shape = {"num_partitions": 2, "num_micro_batches": 2}
  with pytest.raises(
    ValueError, match=r"interleaved makes 8 cells: must be at most .*3"
  ):
    plan.make(params(1, 1, schedule="interleaved", stages_per_device=4, **shape))
