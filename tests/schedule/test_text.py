from __future__ import annotations

import dataclasses
import json

import pytest

from tests.schedule import made
from tfpipe.schedule import Schedule, gpipe, make, one_f_one_b, text

SCHEDULES = [*made.ALL, make("1f1b", 4, 6, remat=True), make("gpipe", 1, 1)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_reading_gives_back_what_was_written(schedule: Schedule) -> None:
  assert text.from_csv(text.to_csv(schedule)) == schedule
  assert text.from_json(text.to_json(schedule)) == schedule


@pytest.mark.parametrize("name", ["", 'a "b", c', "two\nlines", "ü", "placement"])
def test_any_name_survives(name: str) -> None:
  schedule = dataclasses.replace(gpipe.schedule(2, 1), name=name)
  assert text.from_csv(text.to_csv(schedule)).name == name
  assert text.from_json(text.to_json(schedule)).name == name


def test_csv_is_readable() -> None:
  assert text.to_csv(gpipe.schedule(1, 1)) == (
    "name,gpipe\nnum_stages,1\nnum_micro_batches,1\nexact,true\nnum_versions,1\n"
    "placement,0\ndevice,kind,stage,micro_batch,pipe,size,version\n"
    "0,F,0,0,0,1,0\n0,BW,0,0,0,1,0\n0,U,0,0,0,1,0\n"
  )


def test_json_is_json_with_one_line_a_device() -> None:
  written = text.to_json(one_f_one_b.schedule(2, 1))
  assert json.loads(written)["actions"][1][0] == ["F", 1, 0, 0, 1, 0]
  assert len(written.splitlines()) == 8 + 2 + 2  # facts and braces, devices, brackets


def test_rows_of_devices_may_be_mixed_and_blank_lines_are_skipped() -> None:
  schedule = one_f_one_b.schedule(2, 2)
  lines = text.to_csv(schedule).splitlines()
  head, rows = lines[:7], lines[7:]
  mixed = sorted(rows, key=lambda row: row.split(",")[3])  # stable: by micro-batch
  read = text.from_csv("\n\n".join([*head, *mixed]))
  assert [len(actions) for actions in read.actions] == [5, 5]
  assert text.from_csv("\n\n".join(lines)) == schedule


@pytest.mark.parametrize(
  ("old", "new", "match"),
  [
    ("name,", "nam,", r"line 1: 'nam' is not one of name, .*name"),
    ("exact,true", "exact,yes", "line 4: exact is 'yes', expected true or false"),
    ("num_stages,2", "num_stages,two", "line 2: num_stages is 'two', expected a whole"),
    ("num_stages,2", "num_stages,2,3", "line 2: num_stages has 2 values, expected 1"),
    ("num_stages,2", "name,x", "line 2: name is given twice"),
    ("num_stages,2\n", "", "num_stages missing"),
    ("placement,0,1", "placement,0,-1", "line 6: placement is '-1'"),
    ("placement,0,1", "placement,0,0", "line 11: device is 1, but placement has 1"),
    ("placement,0,1\n", "", "line 7: device is 0, but placement has 0 devices"),
    ("0,F,0,0,0,1,0", "0,G,0,0,0,1,0", "line 8: kind is 'G', not one of F, R, B"),
    ("0,F,0,0,0,1,0", "0,F,0,x,0,1,0", "line 8: micro_batch is 'x'"),
    ("0,F,0,0,0,1,0", "0,F,0,0,0,1", "line 8: 6 values, expected device, kind, stage"),
    ("0,F,0,0,0,1,0", '0,"F"x,0', "line 8: "),
    ("device,kind", "device,kid", "line 7: 'device' is not one of"),
    ("placement,0,1", "placement,0,300000000", "device 300000000, but only 2 stages"),
    ("placement,0,1", f"placement,0,{'9' * 5000}", "placement has 5000 digits"),
    ("placement,0,1", "placement", "line 6: placement has no values"),
    ("placement,0,1", "placement,,", "line 6: placement has no values"),
  ],
)
def test_csv_errors_name_line_and_field(old: str, new: str, match: str) -> None:
  written = text.to_csv(gpipe.schedule(2, 1))
  assert old in written
  with pytest.raises(ValueError, match=match):
    text.from_csv(written.replace(old, new, 1))


def test_a_spreadsheet_may_have_saved_the_csv() -> None:
  schedule = one_f_one_b.schedule(2, 3)
  written = text.to_csv(schedule)
  columns = 1 + written.splitlines()[-1].count(",")
  padded = "".join(
    line + "," * (columns - 1 - line.count(",")) + "\n" for line in written.splitlines()
  )
  for changed in (
    padded,
    padded.replace(",", ";"),
    written.replace(",", ";"),
    written.replace("exact,true", "exact,TRUE"),
    written.replace("exact,true", "exact,True"),
    "\ufeff" + written,
    padded.replace("\n", "\r\n"),
    written.replace("device,kind", ",,,\ndevice,kind"),
  ):
    assert text.from_csv(changed) == schedule
  unnamed = dataclasses.replace(schedule, name="")
  assert text.from_csv(text.to_csv(unnamed)) == unnamed


def test_csv_without_actions_is_refused() -> None:
  with pytest.raises(ValueError, match=r"the line device,kind,stage.* is missing"):
    text.from_csv("name,x\n")


@pytest.mark.parametrize(
  ("change", "match"),
  [
    ({"nmae": "x"}, "field 'nmae' is not one of name, .*name"),
    ({"name": 3}, "name is 3, expected str"),
    ({"exact": 1}, "exact is 1, expected bool"),
    ({"num_stages": True}, "num_stages is True, expected int"),
    ({"placement": 0}, "placement is 0, expected list"),
    ({"placement": [0]}, r"placement\[0\] is 0, expected list"),
    ({"placement": [[0, "1"]]}, r"placement\[0\]\[1\] is '1', expected int"),
    ({"actions": [["F"]]}, r"actions\[0\]\[0\] is 'F', expected list"),
    ({"actions": [[["F", 0]]]}, r"actions\[0\]\[0\]: 2 values, expected kind, stage"),
    ({"actions": [[["f", 0, 0, 0, 1, 0]]]}, r"actions\[0\]\[0\]: kind is 'f', not one"),
    ({"actions": [[[[], 0, 0, 0, 1, 0]]]}, r"actions\[0\]\[0\]: kind is \[\], not one"),
    ({"actions": [[["F", 0, 0.5, 0, 1, 0]]]}, r"micro_batch is 0.5, expected int"),
  ],
)
def test_json_errors_name_the_field(change: dict[str, object], match: str) -> None:
  facts = json.loads(text.to_json(gpipe.schedule(2, 1)))
  with pytest.raises(ValueError, match=match):
    text.from_json(json.dumps({**facts, **change}))


def test_json_errors_name_the_line() -> None:
  written = text.to_json(gpipe.schedule(2, 1)).replace('"exact": true', '"exact": tru')
  with pytest.raises(ValueError, match="line 5: Expecting value"):
    text.from_json(written)


def test_a_field_of_json_is_given_once() -> None:
  written = text.to_json(gpipe.schedule(2, 1))
  twice = written.replace('"num_stages"', '"num_stages": 9, "num_stages"')
  with pytest.raises(ValueError, match="field 'num_stages' is given twice"):
    text.from_json(twice)
  with pytest.raises(ValueError, match="nested too deeply"):
    text.from_json("[" * 100_000)


def test_json_must_be_a_complete_object() -> None:
  with pytest.raises(ValueError, match="expected a JSON object, not list"):
    text.from_json("[]")
  with pytest.raises(ValueError, match=r"name, num_stages, .*, actions missing"):
    text.from_json("{}")
