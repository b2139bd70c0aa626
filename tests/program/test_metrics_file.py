import json

import pytest

from tests.program import training
from tfpipe.program.metrics_cut import cut
from tfpipe.program.metrics_file import MetricsFile, Record, read

DAMAGED = [
  b"\0\0\0\n",
  b"\xff\n",
  b"[3]\n",
  b"3\n",
  b"[" * 100_000 + b"\n",
  b'{"kind": "train", "step": "5", "loss": 1}\n',
  b'{"kind": "train", "step": true, "loss": 1}\n',
  b'{"kind": "train", "loss": 1}\n',
  b'{"kind": ["train"], "step": 1, "loss": 1}\n',
  b'{"step": 1, "loss": 1}\n',
  b'{"kind": "train", "step": 1, "loss": 1' + b"0" * 400 + b"}\n",
  b'{"kind": "tr{"kind": "eval", "step": 1, "loss": 1}\n',
]


def record(step, **values):
  return json.dumps({"kind": "train", "step": step, **values}).encode() + b"\n"


def test_metrics_are_appended_as_json_and_what_is_not_finite_is_null(tmp_path):
  MetricsFile(tmp_path).write("train", 1, {"loss": 0.1 + 0.2, "lr": 0})
  values = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 1e-45}
  MetricsFile(tmp_path).write("eval", 2, values)
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {"kind": "train", "step": 1, "loss": 0.1 + 0.2, "lr": 0},
    {"kind": "eval", "step": 2, "a": None, "b": None, "c": None, "d": 1e-45},
  ]
  assert training.metrics(tmp_path, "train")[0]["step"] == 1


def test_a_record_behind_half_a_line_has_a_line_of_its_own(tmp_path):
  path = tmp_path / "metrics.jsonl"
  half = record(2, loss=2.0)[:-5]
  path.write_bytes(record(1, loss=1.0) + half)
  MetricsFile(tmp_path).write("train", 3, {"loss": 3.0})
  MetricsFile(tmp_path).write("train", 4, {"loss": 4.0})
  assert path.read_bytes().splitlines(keepends=True) == [
    record(1, loss=1.0),
    half + b"\n",
    record(3, loss=3.0),
    record(4, loss=4.0),
  ]


def test_a_line_is_read_as_kind_step_and_numbers():
  line = record(3, loss=0.5, note="text", grad_norm=None, skips=0)
  assert read(line) == Record("train", 3, {"loss": 0.5, "skips": 0})
  assert read(line[:-1]) is None


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_lines_cost_no_other_line(tmp_path, damaged, capsys):
  path, file = tmp_path / "metrics.jsonl", MetricsFile(tmp_path)
  whole = [record(1, loss=1.0), record(2, loss=None, rate=5)]
  path.write_bytes(whole[0] + damaged + whole[1])
  assert file.curves() == {"loss": {"train": [(1, 1.0)]}, "rate": {"train": [(2, 5)]}}
  with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is no record of metr"):
    file.check()
  cut(path, 2)
  assert path.read_bytes() == b"".join(whole)
  assert "1 damaged lines removed" in capsys.readouterr().out
  file.check()
