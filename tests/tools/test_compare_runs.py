import json

import pytest
from absl import flags
from absl.testing import flagsaver

from tests.program import html_tree
from tools import compare_runs


@pytest.fixture(autouse=True)
def parsed():
  """Flags as a program finds them that was given none."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()


def make(folder, params, records):
  folder.mkdir(parents=True)
  (folder / "params.txt").write_text("".join(f"{k} : {v}\n" for k, v in params.items()))
  lines = [json.dumps(record) for record in records]
  (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
  return str(folder)


@pytest.fixture
def folders(tmp_path):
  def records(losses, **last):
    rows = [
      {"kind": "train", "step": step, "loss": loss, "grad_norm": 1.0}
      for step, loss in losses
    ]
    return [*rows, *([{"kind": "eval", **last}] if last else [])]

  return [
    make(
      tmp_path / "x" / "a",
      {"same": 1, "rate": 0.1, "old": "'gone'"},
      records([(5, 3.0), (10, 2.0)], step=10, loss=2.5, accuracy=0.25),
    ),
    make(
      tmp_path / "y" / "b",
      {"same": 1, "rate": 0.2},
      records([(5, 4.0), (10, None), (15, 1.0)]),
    ),
  ]


def test_params_that_differ_are_listed_and_others_are_not(folders):
  table = compare_runs.differences(compare_runs.read(folders))
  assert list(table.columns) == ["Params", "a", "b"]
  assert table.rows == [["old", "'gone'", "-"], ["rate", "0.1", "0.2"]]


def test_the_last_value_of_each_kind_is_listed(folders):
  table = compare_runs.results(compare_runs.read(folders))
  assert table.rows == [
    ["eval step", "10", "-"],
    ["eval loss", "2.5", "-"],
    ["eval accuracy", "0.25", "-"],
    ["train step", "10", "15"],
    ["train loss", "2", "1"],
    ["train grad_norm", "1", "1"],
  ]


def test_curves_of_a_quantity_are_drawn_over_each_other(folders):
  found = compare_runs.curves(compare_runs.read(folders))
  assert found["train loss"] == {
    "a": [(5, 3.0), (10, 2.0)],
    "b": [(5, 4.0), (15, 1.0)],  # step 10 was not finite
  }
  assert found["eval accuracy"] == {"a": [(10, 0.25)]}


def test_tables_are_printed_and_the_page_is_written(folders, tmp_path, capsys):
  output = tmp_path / "out.html"
  with flagsaver.flagsaver(page=str(output)):
    compare_runs.main(["compare_runs", *folders])
  shown = capsys.readouterr().out
  assert "rate    0.1     0.2\n" in shown
  assert shown.endswith(f"wrote {output}\n")
  page = html_tree.read(output.read_text())
  assert page.find("h1")[0].text == "a, b"
  sections = [node.attributes["id"] for node in page.find("section")]
  assert sections == ["params", "results", "losses", "metrics"]
  (losses,) = page.find("section", id="losses")
  assert len(losses.find("polyline")) == 2
  titles = [node.text for node in page.find("h3")]
  assert titles == ["train grad_norm", "eval loss", "eval accuracy"]


def test_runs_that_are_equal_say_so(folders, tmp_path, capsys):
  twin = make(tmp_path / "twin", {"same": 1}, [])
  other = make(tmp_path / "other", {"same": 1}, [])
  with flagsaver.flagsaver(page=str(tmp_path / "out.html")):
    compare_runs.main(["compare_runs", twin, other])
  shown = capsys.readouterr().out
  assert "All Params are the same.\n" in shown
  assert "Nothing has been logged.\n" in shown


def test_folders_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path):
  paths = [make(tmp_path / name / "run", {}, []) for name in ("p", "q")]
  names = [run.name for run in compare_runs.read(paths)]
  assert names == ["p/run", "q/run"]


def test_what_is_no_run_is_refused(folders, tmp_path, capsys):
  broken = make(tmp_path / "broken", {}, [])
  (tmp_path / "broken" / "metrics.jsonl").write_text('{"kind": "train"}\n')
  unread = make(tmp_path / "unread", {}, [])
  (tmp_path / "unread" / "params.txt").write_text("no line\n")
  for given, message in (
    ([], "0 folders are given; it takes two"),
    (folders[:1], "1 folders are given; it takes two"),
    ([folders[0], folders[0]], f"{folders[0]} is given twice"),
    ([folders[0], str(tmp_path)], "not the folder of a run: it has no params.txt"),
    ([folders[0], str(tmp_path / "no")], "not the folder of a run: it has no params"),
    ([folders[0], broken], "metrics.jsonl: line 1 is no record of metrics"),
    ([folders[0], unread], "params.txt: line 1: expected 'key : value'"),
  ):
    with pytest.raises(SystemExit, match=message):
      compare_runs.main(["compare_runs", *given])


@pytest.mark.parametrize(
  ("page", "message"),
  [
    ("no/such/page.html", "there is no such file or folder; make it, or name another"),
    ("", "this is a folder where a file must be; move it away"),
    ("x/a/params.txt/page.html", "a file is where a folder must be; move it away"),
  ],
)
def test_a_page_that_cannot_be_written_is_one_line(folders, tmp_path, page, message):
  path = tmp_path / page
  with (
    flagsaver.flagsaver(page=str(path)),
    pytest.raises(SystemExit, match=f"^error: {path}: {message}$"),
  ):
    compare_runs.main(["compare_runs", *folders])


def test_a_line_that_is_being_written_is_left_out(folders):
  before = compare_runs.results(compare_runs.read(folders)).rows
  with open(f"{folders[1]}/metrics.jsonl", "a") as file:
    file.write('{"kind": "train", "step": 99, "lo')
  assert compare_runs.results(compare_runs.read(folders)).rows == before
