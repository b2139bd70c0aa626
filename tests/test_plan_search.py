import itertools

import pytest

from tests.priced import params
from tests.program import command
from tests.program.training import IMAGE, TEXT
from tfpipe import plan, plan_search, plan_settings, schedule
from tfpipe.hardware import Hardware
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.memory_bound import state_bytes
from tfpipe.model import REMAT
from tfpipe.network import Network
from tfpipe.optimizers import SGD, Learner

FAST = Hardware("fast", 10**9, 1e3, "float32", 1e9, link_latency_secs=1e-6)


def run(**fields):
  """Gives six layers that keep 50 bytes for each of 16 examples."""
  p = params(*[3, 1, 4, 1, 5, 9], batch=16)
  for layer in p.task.layers:
    layer.Set(inside=50, width=2, **fields)
  p.task.layers[0].flops = 0
  return p


def planned(p, settings, hardware=FAST):
  made = plan.make(
    p.Copy().Set(**{f"pipeline.{k}": v for k, v in settings.items()}), hardware
  )
  return made.step_secs, max(made.device_bytes)


def every_setting(p):
  """Plans all that may be tried for seven layers and a batch of 16, by loops."""
  names = (*schedule.NAMES, "zb_auto")
  loops = {"interleaved", "looped_bfs", "zb_interleaved"}
  for k, m, remat, name in itertools.product(
    (1, 2, 3, 4, 6, 7), (1, 2, 4, 8, 16), REMAT, names
  ):
    wanted = {min((1, 2, 4, 8, 16), key=lambda n: abs(n - f * k)) for f in (1, 2, 4, 8)}
    if m not in {*wanted, 16}:
      continue
    for v in (2, 3, 4) if name in loops else (0, 2) if name == "zb_auto" else (0,):
      for pairs in (0, 2) if name.startswith("chimera") and k == 4 else (0,):
        settings = {
          "num_partitions": k,
          "num_micro_batches": m,
          "schedule": name,
          "stages_per_device": v,
          "remat": remat,
          "num_pairs": pairs,
        }
        try:
          yield settings, planned(p, settings)
        except ValueError:
          continue


def test_the_rows_are_what_the_plan_predicts_for_their_settings():
  p = run()
  front = plan_search.search(p, FAST)
  for row in front.rows:
    assert planned(p, row.settings) == (row.step_secs, row.device_bytes)


def test_nothing_beats_a_row_and_every_other_setting_is_beaten():
  p = run()
  front = plan_search.search(p, FAST)
  assert len(front.rows) > 3
  for row in front.rows:
    assert not any(other.beats(row) for other in front.rows if other is not row)
  number = 0
  for settings, (secs, num_bytes) in every_setting(p):
    number += 1
    found = plan_search.Row(settings, secs, num_bytes, 0.0)
    assert any(row.beats(found) for row in front.rows), settings
  assert front.num_planned == number
  assert (front.num_too_large, front.num_left_out, front.smallest) == (0, 0, None)


def test_what_is_given_stays_and_the_rest_is_searched():
  p = run()
  p.pipeline.Set(num_partitions=3, schedule="1f1b")
  front = plan_search.search(p, FAST, ["num_partitions", "schedule"])
  assert {row.settings["num_partitions"] for row in front.rows} == {3}
  assert {row.settings["schedule"] for row in front.rows} == {"1f1b"}
  # Divisors of 16 near to 12, 6, 24 and 3, and 16; three kinds of remat.
  assert front.num_planned == 3 * len({8, 4, 16, 2})
  assert front.tried["num_partitions"] == (3,)
  assert front.tried["stages_per_device"] == (1,)
  assert front.tried["num_micro_batches"] == (2, 4, 8, 16)
  everything = plan_search.search(p, FAST, plan_search.SEARCHED)
  assert everything.num_planned == 1


def test_the_memory_of_a_device_bounds_the_search():
  p = run()
  front = plan_search.search(p, FAST)
  need = sorted(row.device_bytes for row in front.rows)
  small = Hardware("small", need[1], 1e3, "float32", 1e9, link_latency_secs=1e-6)
  bounded = plan_search.search(p, small)
  assert all(row.device_bytes <= need[1] for row in bounded.rows)
  assert bounded.num_too_large > 0
  tiny = Hardware("tiny", 1, 1e3, "float32", 1e9)
  nothing = plan_search.search(p, tiny)
  assert nothing.rows == ()
  assert nothing.num_too_large == nothing.num_planned
  text = plan_search.table(nothing, "x")
  assert nothing.smallest is not None
  assert f"nothing fits; what needs least is {nothing.smallest.flags}: " in text


def test_the_search_is_bounded_and_says_what_it_left_out(monkeypatch):
  monkeypatch.setattr(plan_search, "BUDGET", 2000)
  front = plan_search.search(run(), FAST)
  assert front.num_left_out > 0
  assert f"; {front.num_left_out} more beyond the bound" in plan_search.table(front, "")
  monkeypatch.setattr(plan_search, "BUDGET", 3)
  with pytest.raises(
    ValueError, match=r"no setting can be planned: the smallest has more than 3 act"
  ):
    plan_search.search(run(), FAST)


def test_micro_batches_divide_every_batch():
  p = run()
  p.eval_input = SyntheticImageInput.EvalParams().Set(batch_size=12, image_size=5)
  front = plan_search.search(p, FAST)
  assert front.tried["num_micro_batches"] == (1, 2, 4)


def test_the_search_begins_where_weights_and_slots_fit():
  # Six layers with 1,000 weights each: 8,000 bytes of weights and gradients a layer,
  # which 13,000 bytes hold from four devices on: 4 > 48,000 / 13,000.
  p = run(weights=1000)
  p.task.layers[0].weights = 0
  p.task.learner = Learner.Params().Set(optimizer=SGD.Params())
  small = Hardware("small", 13_000, 1e3, "float32", 1e9)
  front = plan_search.search(p, small)
  assert front.least_partitions == 4
  assert front.tried["num_partitions"] == (4, 6, 7)
  assert front.rows
  shown = plan_search.table(front, "x").splitlines()
  assert shown[1].startswith("tried: num_partitions 4, 6, 7; num_micro_batches ")
  assert shown[2] == "weights, slots and gradients need at least 4 devices"


def test_what_cannot_fit_is_not_planned():
  p = run(weights=1000)
  p.task.learner = Learner.Params().Set(optimizer=SGD.Params())
  p.pipeline.Set(schedule="1f1b")
  # Of two layers each 8,000 bytes of weights and sums, and 4,000 of new gradients.
  small = Hardware("small", 23_000, 1e3, "float32", 1e9)
  front = plan_search.search(p, small, ["schedule"])
  assert front.num_too_few > 0
  assert front.tried["num_partitions"] == (7,)
  assert {row.settings["num_partitions"] for row in front.rows} == {7}
  assert f"; {front.num_too_few} more cannot fit" in plan_search.table(front, "x")


def test_a_search_without_any_setting_says_what_was_tried():
  p = run()
  p.pipeline.Set(stages_per_device=9)
  with pytest.raises(ValueError, match="no setting can be planned: ") as error:
    plan_search.search(p, FAST, ["stages_per_device"])
  text = str(error.value)
  assert "num_partitions 1, 2, 3, 4, 6, 7; num_micro_batches 1, 2, 4, 8, 16; " in text
  assert "schedule dualpipe_v, interleaved, looped_bfs, " in text
  assert "stages_per_device 9; remat cell, layer, none are refused, first: " in text
  assert text.endswith("makes 9 cells: must be at most the number of layers, 7")


def test_networks_of_many_devices_are_searched_there():
  p = params(*[1] * 200, batch=4)
  network = Network(p)
  tiny = sum(map(state_bytes, network.states)) // 100
  numbers = plan_settings._partitions(network, tiny)
  assert numbers == [128, 192, 201]
  assert plan_settings._partitions(network, 10**9)[-3:] == [32, 48, 64]


def test_an_option_that_is_given_is_kept_where_a_schedule_has_it():
  p = run()
  p.pipeline.Set(num_pairs=2, num_partitions=4)
  front = plan_search.search(p, FAST, ["num_pairs", "num_partitions"])
  names = {row.settings["schedule"] for row in front.rows}
  assert "1f1b" in front.tried["schedule"]
  assert "chimera" in names
  for row in front.rows:
    pairs = 2 if row.settings["schedule"].startswith("chimera") else 0
    assert row.settings["num_pairs"] == pairs
    assert f"--set pipeline.num_pairs={pairs}" in row.flags
  p.pipeline.Set(num_pairs=0, group_size=8)
  front = plan_search.search(p, FAST, ["group_size"])
  assert {"interleaved", "1f1b"} <= set(front.tried["schedule"])
  p.pipeline.Set(group_size=-1)
  with pytest.raises(ValueError, match=r"pipeline.group_size=-1: must be a whole"):
    plan_search.search(p, FAST, ["group_size"])


def test_stages_a_device_that_are_given_exclude_schedules_without_them():
  p = run()
  p.pipeline.Set(stages_per_device=3)
  front = plan_search.search(p, FAST, ["stages_per_device"])
  assert front.tried["schedule"] == ("interleaved", "looped_bfs", "zb_interleaved")
  assert front.tried["stages_per_device"] == (3,)


def test_what_the_experiment_sets_is_printed_also_where_it_is_taken_back():
  p = run()
  p.pipeline.Set(schedule="interleaved", stages_per_device=3, group_size=8)
  front = plan_search.search(p, FAST)
  for row in front.rows:
    assert "--stages_per_device=" in row.flags
    assert "--set pipeline.group_size=0" in row.flags
    assert planned(p, row.settings) == (row.step_secs, row.device_bytes)


def test_more_partitions_than_layers_are_refused():
  p = run()
  p.pipeline.num_partitions = 1024
  with pytest.raises(
    ValueError, match=r"num_partitions=1024: must be at most the .* 7"
  ):
    plan_search.search(p, FAST, ["num_partitions"])


def test_a_search_has_reasons_if_nothing_can_be_planned():
  p = run()
  p.pipeline.num_micro_batches = 5
  with pytest.raises(
    ValueError,
    match=r"num_micro_batches 5; .*: pipeline\.num_micro_batches=5 does",
  ):
    plan_search.search(p, FAST, ["num_micro_batches"])
  p.pipeline.Set(num_micro_batches=1, lengths=(4, 3), num_partitions=2)
  with pytest.raises(ValueError, match=r"lengths=\(4, 3\): must be empty in a search"):
    plan_search.search(p, FAST)


def test_why_a_single_partition_has_several_cells_is_said():
  note = "(more cells than one in a single partition need less memory"
  p, given = run(weights=1000), ["num_partitions", "num_micro_batches"]
  p.pipeline.Set(num_micro_batches=16)
  front = plan_search.search(p, FAST, given)
  assert max(row.settings.get("stages_per_device", 0) for row in front.rows) > 1
  assert note in plan_search.table(front, "")
  # Of one micro-batch nothing is added up: what needs as much is shown plainly.
  p.pipeline.Set(num_micro_batches=1, remat="none")
  front = plan_search.search(p, FAST, [*given, "remat"])
  assert {row.settings["schedule"] for row in front.rows} == {"gpipe"}
  assert note not in plan_search.table(front, "")


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_every_row_runs_as_it_is_printed(name, capsys):
  arguments = [f"--model={name}", "--mode=plan", "--hardware=cpu"]
  command.run(*arguments, "--search")
  lines = capsys.readouterr().out.splitlines()
  first = 1 + lines.index(
    f"not beaten in devices, step and memory by any of these; --model={name} and"
  )
  header, *rows = lines[first:]
  assert header.split() == ["step", "memory", "bubble", "flags"]
  assert len(rows) > 2
  for row in rows:
    flags = row[row.index("--") :].split()
    command.run(*arguments, *flags)
    shown = capsys.readouterr().out
    step = row.split("  ")[0].strip()
    assert f"predicted step {step}, bubble" in shown
    assert f" needs most, {row[header.index('memory') :].split('  ')[0]} (" in shown


def test_flags_that_are_given_bound_the_search_of_the_trainer(capsys):
  command.run(
    f"--model={TEXT}",
    "--mode=plan",
    "--hardware=cpu",
    "--search",
    "--schedule=1f1b",
    "--set=pipeline.num_partitions=2",
    "--set=input.batch_size=16",
  )
  lines = capsys.readouterr().out.splitlines()
  rows = [line for line in lines if " --num_partitions=" in line]
  assert rows
  assert any(
    line.endswith(f"--model={TEXT} --set input.batch_size=16 and") for line in lines
  )
  for row in rows:
    assert "--num_partitions=2 " in row
    assert "--schedule=1f1b " in row


def test_the_largest_of_the_paper_s_networks_that_a_core_of_tpu_v3_holds(capsys):
  # GPipe, table 1: 13 layers on one of 16 GB, with re-materialization.
  command.run(
    "--model=lm.paper.Transformer13",
    "--mode=plan",
    "--hardware=tpu_v3",
    "--search",
    "--num_partitions=1",
    "--schedule=gpipe",
  )
  lines = capsys.readouterr().out.splitlines()
  rows = [line for line in lines if " --num_partitions=" in line]
  assert rows
  assert all("--remat=none" not in row for row in rows)
