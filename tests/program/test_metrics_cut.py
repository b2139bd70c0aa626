import json
import os

import pytest

from tfpipe.program.metrics_cut import cut


def record(kind, step):
  return json.dumps({"kind": kind, "step": step, "loss": None}) + "\n"


def test_a_missing_file_stays_missing(tmp_path):
  cut(tmp_path / "metrics.jsonl", 3)
  assert list(tmp_path.iterdir()) == []


def test_records_up_to_the_step_are_left_as_they_are(tmp_path, capsys):
  path = tmp_path / "metrics.jsonl"
  content = record("train", 1) + record("eval", 3)
  path.write_text(content)
  before = path.stat()
  cut(path, 3)
  assert path.read_text() == content
  # Not even written: a process that evaluates may be adding to it.
  assert (path.stat().st_ino, path.stat().st_mtime_ns) == (
    before.st_ino,
    before.st_mtime_ns,
  )
  assert capsys.readouterr().out == ""


def test_later_records_of_any_kind_and_damaged_lines_are_removed(tmp_path, capsys):
  path = tmp_path / "metrics.jsonl"
  kept = [record("train", 2), record("eval", 2), record("train", 3), record("eval", 1)]
  lines = [
    kept[0],
    kept[1],
    kept[2],
    record("train", 4),
    "\0\0\0\n",
    '{"kind": "train", "step": "5"}\n',
    "[3]\n",
    '{"kinc": "train", "step": 1}\n',
    '{"kind": "train", "sdep": 1}\n',
    '{"kind": 3, "step": 1}\n',
    record("eval", 4),
    kept[3],
    record("train", 3)[:-1],
  ]
  path.write_text("".join(lines))
  with path.open("ab") as file:
    file.write(b"\xff")
  cut(path, 3)
  assert path.read_text() == "".join(kept)
  assert [left.name for left in tmp_path.iterdir()] == ["metrics.jsonl"]
  assert capsys.readouterr().out == (
    f"{path} cut back to step 3: 2 lines of later steps and 7 damaged lines removed\n"
  )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written_is_an_error_before_training(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text(record("train", 1))
  path.chmod(0o400)
  with pytest.raises(PermissionError, match=r"metrics\.jsonl"):
    cut(path, 1)
