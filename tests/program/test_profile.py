"""Measured steps: asked for by number, told, filed, and shown on the run's page."""

import json
import types

import pytest

from tests.program import command, html_tree, training
from tfpipe import timeline_files
from tfpipe.program import profile
from tfpipe.program.profile import Profiler, Window

ARGUMENTS = (
  f"--model={training.TEXT}",
  "--mode=train",
  "--max_steps=6",
  "--num_partitions=2",
  "--num_micro_batches=2",
  "--devices=cpu",
)


def test_a_window_is_a_first_step_and_a_number():
  window = profile.parse("20:5", 24)
  assert window == Window(20, 5)
  assert window.last == 24


@pytest.mark.parametrize(
  "text", ["", "5", "5:", ":5", "5-8", "1:3", "5:0", "20:6", "-2:3"]
)
def test_a_window_that_is_none_or_goes_beyond_the_run_is_refused(text):
  with pytest.raises(
    ValueError, match=rf"--profile={text}: must be start:count.*2 to 24"
  ):
    profile.parse(text, 24)


def test_a_run_that_continues_beyond_the_window_goes_on_without_and_says_so(capsys):
  window = Window(10, 2)
  assert profile.left(window, 8) == window
  assert profile.left(None, 9) is None
  assert capsys.readouterr().out == ""
  assert profile.left(window, 9) is None
  assert capsys.readouterr().out == (
    "--profile=10:2 measures nothing: the run continues after step 9, and the first "
    "step that can be measured is 11\n"
  )


def test_devices_that_the_hosts_clock_does_not_see_are_refused(tmp_path):
  run = types.SimpleNamespace(step=0, devices=["/device:GPU:0"])
  with pytest.raises(
    ValueError, match=r"--profile: .*ahead of /device:GPU:0; only CPUs"
  ):
    Profiler(run, Window(10, 2), tmp_path)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("mode", ["eval", "plan", "inspect"])
def test_only_training_is_measured(tmp_path, mode):
  folder = [f"--logdir={tmp_path}"] if mode == "eval" else []
  text = command.refusal(
    f"--model={training.TEXT}", f"--mode={mode}", "--profile=2:1", *folder
  )
  assert f"--profile has no effect with --mode={mode}" in text


def _rows(printed):
  """Reads the comparison: name → the words behind it."""
  lines = printed.splitlines()
  first = next(i for i, line in enumerate(lines) if line.split() == _COLUMNS)
  return {line[:14].strip(): line[14:].split() for line in lines[first + 1 : first + 8]}


_COLUMNS = ["predicted", "measured", "difference"]


def test_a_measured_run_tells_files_and_draws_what_it_found(tf, tmp_path, capsys):
  command.run(*ARGUMENTS, f"--logdir={tmp_path}", "--profile=3:2")
  printed = capsys.readouterr().out
  assert list(_rows(printed)) == [
    *("step time", "busy", "waiting", "transfer", "host overhead"),
    *("bubble", "imbalance"),
  ]
  assert "the median of 2 steps" in printed
  measured = timeline_files.from_json((tmp_path / "timeline.json").read_text())
  # Two stages, two micro-batches: F, R, BW each, and an update on each device.
  assert len(measured.spans) == 2 * (2 * 3 + 1)
  assert 0 < measured.makespan < 60
  comparison = json.loads((tmp_path / "comparison.json").read_text())
  assert comparison["num_steps"] == 2
  assert comparison["measured"]["step"] == measured.makespan
  trace = json.loads((tmp_path / "trace.json").read_text())
  names = {
    e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
  }
  assert names == {"predicted", "measured"}
  page = html_tree.read((tmp_path / "report.html").read_text())
  sections = [node.attributes["id"] for node in page.find("section")]
  assert sections == [
    *("cut", "memory", "schedule", "timelines", "comparison", "losses"),
    *("metrics", "layers"),
  ]


def test_measuring_changes_no_weight(tf, tmp_path, capsys):
  for name, more in (("plain", []), ("measured", ["--profile=3:2"])):
    command.run(*ARGUMENTS, f"--logdir={tmp_path / name}", *more)
  capsys.readouterr()
  plain, measured = (training.newest(tmp_path / n) for n in ("plain", "measured"))
  assert not training.differences(plain, measured)


def test_every_run_leaves_a_page_and_only_measured_ones_have_timelines(
  tf, tmp_path, capsys
):
  command.run(*ARGUMENTS, f"--logdir={tmp_path}")
  capsys.readouterr()
  page = html_tree.read((tmp_path / "report.html").read_text())
  sections = [node.attributes["id"] for node in page.find("section")]
  assert sections == ["cut", "memory", "schedule", "losses", "metrics", "layers"]
  assert not (tmp_path / "timeline.json").exists()
