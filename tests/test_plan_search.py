import pytest

from tests.priced import params
from tests.program import command
from tests.program.training import IMAGE, TEXT
from tfpipe import plan, plan_search
from tfpipe.hardware import Hardware
from tfpipe.network import Network

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


def every_setting(p, given=()):
  for settings in plan_search._settings(p, Network(p), given):
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
  assert f"; {front.num_left_out} larger ones not planned" in plan_search.table(
    front, ""
  )
  monkeypatch.setattr(plan_search, "BUDGET", 3)
  with pytest.raises(
    ValueError, match=r"--search: no setting can be planned; .* all hav"
  ):
    plan_search.search(run(), FAST)


def test_micro_batches_divide_every_batch():
  p = run()
  for partitions, expected in ((1, [4, 2, 8, 1, 16]), (2, [8, 4, 16, 2]), (16, [16])):
    assert plan_search._micro_batches(p, Network(p), partitions) == expected


def test_a_search_has_reasons_if_nothing_can_be_planned():
  p = run()
  p.pipeline.num_micro_batches = 5
  with pytest.raises(
    ValueError, match=r"the last one: pipeline.num_micro_batches=5 does"
  ):
    plan_search.search(p, FAST, ["num_micro_batches"])
  p.pipeline.Set(num_micro_batches=1, lengths=(4, 3), num_partitions=2)
  with pytest.raises(ValueError, match=r"lengths=\(4, 3\): must be empty in a search"):
    plan_search.search(p, FAST)


@pytest.mark.parametrize("name", [IMAGE, TEXT])
def test_every_row_runs_as_it_is_printed(name, capsys):
  arguments = [f"--model={name}", "--mode=plan", "--hardware=cpu"]
  command.run(*arguments, "--search")
  lines = capsys.readouterr().out.splitlines()
  assert lines[2] == f"not beaten in devices, step and memory; --model={name} and"
  assert lines[3].split() == ["step", "memory", "bubble", "flags"]
  rows = lines[4:]
  assert len(rows) > 2
  for row in rows:
    flags = row[row.index("--") :].split()
    command.run(*arguments, *flags)
    shown = capsys.readouterr().out
    step = row.split("  ")[0].strip()
    assert f"predicted step {step}, bubble" in shown
    assert (
      f" needs most, {row[len(lines[3].split('memory')[0]) :].split('  ')[0]} ("
      in shown
    )


def test_flags_that_are_given_bound_the_search_of_the_trainer(capsys):
  command.run(
    f"--model={TEXT}",
    "--mode=plan",
    "--hardware=cpu",
    "--search",
    "--schedule=1f1b",
    "--set=pipeline.num_partitions=2",
  )
  rows = capsys.readouterr().out.splitlines()[4:]
  assert rows
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
  rows = capsys.readouterr().out.splitlines()[4:]
  assert rows
  assert all("--remat=none" not in row for row in rows)
