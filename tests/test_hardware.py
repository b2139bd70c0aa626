import dataclasses
import json
import re

import pytest

from tfpipe import hardware
from tfpipe.hardware import Hardware

FIELDS = {
  "name": "mine",
  "memory_bytes": 1000,
  "flops_per_sec": 2e9,
  "number_format": "float32",
  "link_bytes_per_sec": 100.0,
}


def written(tmp_path, content):
  path = tmp_path / "mine.json"
  text = content if isinstance(content, str) else json.dumps(content)
  path.write_text(text)
  return str(path)


def test_the_table_has_the_devices_that_the_papers_and_users_have():
  assert set(hardware.names()) >= {
    *(f"tpu_{v}" for v in ("v2", "v3", "v4", "v5e", "v5p", "v6e")),
    *("p100", "v100_16gb", "v100_32gb", "a100_40gb", "a100_80gb", "h100", "h200"),
    "cpu",
  }
  for name in hardware.names():
    assert hardware.find(name).name == name


def test_a_device_of_tpu_v2_and_v3_is_a_core_and_of_later_ones_a_chip():
  # GPipe's table 1 is for accelerators of 8 and 16 GB: cores of v2 and v3.
  assert hardware.find("tpu_v2").memory_bytes == 8 * 2**30
  assert hardware.find("tpu_v3").memory_bytes == 16 * 2**30
  # 123 TFLOP/s a chip of two cores; 275 a chip.
  assert 2 * hardware.find("tpu_v3").flops_per_sec == 123e12
  assert hardware.find("tpu_v4").flops_per_sec == 275e12


def test_memory_is_counted_in_powers_of_two_throughout():
  # As printed: GB or GiB.
  printed = {"v100_16gb": 16, "a100_80gb": 80, "h100": 80, "h200": 141}
  printed |= {"tpu_v5e": 16, "tpu_v5p": 95, "tpu_v6e": 32}
  for name, number in printed.items():
    assert hardware.find(name).memory_bytes == number * 2**30


def test_links_of_tpus_are_a_direction_of_one_port():
  # Bidirectional GB/s a chip over ports, of which a direction is half.
  printed = {"tpu_v5e": (400, 4), "tpu_v5p": (1200, 6), "tpu_v6e": (800, 4)}
  for name, (both, ports) in printed.items():
    assert hardware.find(name).link_bytes_per_sec == both * 1e9 / ports / 2


def test_a_number_beyond_all_floats_is_no_finite_one():
  with pytest.raises(ValueError, match=r"must be a finite number above 0"):
    Hardware(**{**FIELDS, "link_bytes_per_sec": 10**400})


def test_a_file_in_another_encoding_is_named(tmp_path):
  path = tmp_path / "mine.json"
  path.write_bytes(json.dumps(FIELDS).encode("utf-16"))
  with pytest.raises(ValueError, match=r"mine.json: this is no text in UTF-8"):
    hardware.find(str(path))


def test_a_transfer_takes_its_latency_and_its_bytes():
  device = Hardware(**FIELDS, link_latency_secs=0.5)
  assert device.transfer_secs(200) == 2.5
  assert device.transfer_secs(0) == 0.5


def test_a_file_describes_a_device(tmp_path):
  assert hardware.find(written(tmp_path, FIELDS)) == Hardware(**FIELDS)
  full = {**FIELDS, "link_latency_secs": 0, "efficiency": 0.4}
  found = hardware.find(written(tmp_path, full))
  assert (found.link_latency_secs, found.efficiency) == (0, 0.4)
  assert dataclasses.asdict(found) == full


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"name": ""}, "name='': must be a text of at least one letter"),
    ({"name": 3}, "name=3: must be a text"),
    ({"number_format": None}, "number_format=None: must be a text"),
    ({"memory_bytes": 0}, "memory_bytes=0: must be a finite number above 0"),
    ({"memory_bytes": 1.5}, "memory_bytes=1.5: must be a whole number above 0"),
    ({"memory_bytes": "16 GiB"}, "memory_bytes='16 GiB': must be a finite number"),
    ({"memory_bytes": True}, "memory_bytes=True: must be a finite number"),
    ({"memory_bytes": float("nan")}, "memory_bytes=nan: must be a finite number"),
    ({"flops_per_sec": -1}, "flops_per_sec=-1: must be a finite number above 0"),
    ({"flops_per_sec": float("inf")}, "flops_per_sec=inf: must be a finite number"),
    ({"link_bytes_per_sec": 0}, "link_bytes_per_sec=0: must be a finite number above"),
    ({"link_latency_secs": -1}, "link_latency_secs=-1: must be a finite number >= 0"),
    ({"efficiency": 0}, "efficiency=0: must be a number above 0, at most 1"),
    ({"efficiency": 1.01}, "efficiency=1.01: must be a number above 0, at most 1"),
    ({"flops_per_sec": 10**400}, "a number of 401 digits"),
    (
      {"flops_per_sec": 1e-300, "efficiency": 1e-100},
      "flops_per_sec=1e-300: must be at least 1e-100 when multiplied by efficiency",
    ),
    ({"link_bytes_per_sec": 1e-320}, "link_bytes_per_sec=1e-320: must be at least 1e-"),
    ({"memory": 1}, "unknown field 'memory'; did you mean 'memory_bytes'?"),
  ],
)
def test_a_wrong_field_of_a_file_is_named(tmp_path, change, message):
  path = written(tmp_path, {**FIELDS, **change})
  with pytest.raises((ValueError, TypeError), match=re.escape(message)) as error:
    hardware.find(path)
  assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_of_a_file_is_named(tmp_path, field):
  rest = {name: value for name, value in FIELDS.items() if name != field}
  with pytest.raises(ValueError, match=f"mine.json: field {field} missing"):
    hardware.find(written(tmp_path, rest))


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("[1]", "expected a JSON object, not list"),
    ('{"name": }', r"line 1: Expecting value"),
    ('{"name": "a", "name": "b"}', "field 'name' is given twice"),
    ("", "line 1: Expecting value"),
    ("[" * 100_000, "brackets are nested too deeply"),
  ],
)
def test_what_is_no_such_object_is_refused(tmp_path, content, message):
  with pytest.raises((ValueError, TypeError), match=f"mine.json: {message}"):
    hardware.find(written(tmp_path, content))


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("tpu_v33", r"'tpu_v33' is not one of .*, nor a file .json; did you mean 'tpu_v3'"),
    ("TPU_V4", r"did you mean 'tpu_v4'\?"),
    ("", "hardware '' is not one of tpu_v2, "),
    ("v100", r"did you mean 'v100_16gb' or 'v100_32gb'\?"),
    ("H10", r"did you mean 'h100'\?"),
    ("nowhere/mine.json", "hardware 'nowhere/mine.json': there is no such file"),
  ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
  with pytest.raises(LookupError, match=message):
    hardware.find(name)


def test_users_add_devices_once(monkeypatch):
  monkeypatch.setattr(hardware, "_TABLE", dict(hardware._TABLE))
  mine = hardware.register(Hardware(**FIELDS))
  assert hardware.find("mine") is mine
  assert "mine" in hardware.names()
  with pytest.raises(ValueError, match="hardware 'mine' is registered already"):
    hardware.register(mine)
