import json
import os

import pytest

from tfpipe import text_files


def test_a_text_is_read_without_the_mark_of_its_encoding(tmp_path):
  path = tmp_path / "a.txt"
  path.write_bytes("\ufeffäß\n".encode())
  assert text_files.read(path) == "äß\n"


def test_the_home_folder_may_be_a_tilde(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "a.txt").write_text("x")
  assert text_files.read("~/a.txt") == "x"


def test_the_home_folder_of_nobody_is_refused():
  message = (
    r"^--logdir=~nobody\.here/a: ~nobody\.here must be the home folder of a user"
  )
  with pytest.raises(ValueError, match=message):
    text_files.home("~nobody.here/a", "--logdir=~nobody.here/a")
  with pytest.raises(
    ValueError, match=r"^~nobody\.here/a\.txt: ~nobody\.here must be "
  ):
    text_files.read("~nobody.here/a.txt")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", "name,x".encode("utf-16")])
def test_other_encodings_are_refused(tmp_path, content):
  path = tmp_path / "a.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r"no text in UTF-8") as error:
    text_files.read(path)
  assert type(error.value) is ValueError  # whose message may be put into another


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ('{"a": 1, "a": 1}', "field 'a' is given twice"),
    ('[{"b": {"c": 1, "c": 2}}]', "field 'c' is given twice"),
    ("[" * 100_000, "brackets are nested too deeply"),
    ('{"a":' * 100_000, "brackets are nested too deeply"),
    (f'{{"a": {10**400}}}', "a number of 401 digits: expected at most 300"),
    ("1" * 10_000, "a number of 10000 digits"),
    ("{\n\n", "line 3: Expecting property name"),
    ("", "line 1: Expecting value"),
    (r'["\ud83d"]', r"'\\ud83d' is half a character"),
    (r'{"a\uDE00": 1}', r"'\\ude00' is half a character"),
    (r'["\ude00\ud83d"]', r"'\\ude00' is half a character"),
  ],
)
def test_what_is_no_json_is_refused_in_a_line(text, message):
  with pytest.raises(ValueError, match=message) as error:
    text_files.from_json(text)
  assert type(error.value) is ValueError
  assert "\n" not in str(error.value)


def test_json_is_read_as_it_is():
  value = {"a": [1, -2, 2.5, None, True, "x", "😀"], "b": {"a": 10**200}}
  assert text_files.from_json("\ufeff" + json.dumps(value)) == value


def test_a_file_that_is_named_is_found_or_refused_by_what_is_there(tmp_path):
  file, folder, pipe = (tmp_path / name for name in ("file", "folder", "pipe"))
  file.write_text("")
  folder.mkdir()
  os.mkfifo(pipe)
  assert text_files.find(str(file), "x") == file
  with pytest.raises(ValueError, match=r"^x: this is a folder, not a file$"):
    text_files.find(folder, "x")
  with pytest.raises(ValueError, match=r"^x: this is a pipe or a device, not a file$"):
    text_files.find(pipe, "x")
  with pytest.raises(LookupError, match=r"^x: there is no such file$"):
    text_files.find(tmp_path / "nothing", "x")
