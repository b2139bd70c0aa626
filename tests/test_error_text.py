"""Messages of errors: one line, the file, what to do."""

import errno
import os

import pytest

from tfpipe import error_text


def raised(action):
  with pytest.raises(OSError, match="Errno") as found:
    action()
  return found.value


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
  (tmp_path / "f").mkdir()
  (tmp_path / "g").write_text("")
  expected = f"{tmp_path}/f: this is a folder where a file must be; move it away"
  assert error_text.of(raised((tmp_path / "f").read_text)) == expected
  # Of two names, the one that is in the way.
  assert error_text.of(raised(lambda: (tmp_path / "g").replace(tmp_path / "f"))) == (
    expected
  )


def test_a_file_in_the_place_of_a_folder_and_what_is_not_there_are_named(tmp_path):
  (tmp_path / "f").write_text("")
  below = tmp_path / "f" / "x"
  assert error_text.of(raised(below.read_text)) == (
    f"{below}: a file is where a folder must be; move it away"
  )
  missing = tmp_path / "no" / "x"
  assert error_text.of(raised(lambda: missing.write_text(""))) == (
    f"{missing}: there is no such file or folder; make it, or name another"
  )


@pytest.mark.parametrize("number", error_text._TEXTS)
def test_every_known_error_has_its_file_and_an_advice(number):
  error = OSError(number, os.strerror(number), "some/file")
  text = error_text.of(error)
  assert text.startswith("some/file: ")
  assert text.count("; ") == 1
  assert "Errno" not in text
  assert error_text.of(OSError(number, os.strerror(number)), "logs") == text.replace(
    "some/file", "logs"
  )


def test_the_words_of_an_error_of_our_own_are_kept():
  error = OSError(errno.ENOSPC, "step 3 could not be saved: disk full", "logs")
  assert error_text.of(error) == (
    "logs: step 3 could not be saved: disk full; remove what is not needed"
  )
  assert error_text.of(OSError("logs/train: no more events"), "logs") == (
    "logs/train: no more events"
  )
  unknown = OSError(errno.ENXIO, os.strerror(errno.ENXIO), "x")
  assert error_text.of(unknown) == f"x: {os.strerror(errno.ENXIO)}"
  assert error_text.of(LookupError("no 'such' name")) == "no 'such' name"
  assert error_text.of(ValueError("K=0")) == "K=0"


def test_what_would_change_the_terminal_is_shown_as_its_escape():
  assert (
    error_text.printable("a\x1b[31m é\t\x07\n\udcff") == "a\\x1b[31m é\\t\\x07\n\\udcff"
  )
  assert error_text.of(ValueError("--mode=\x1b[31m")) == "--mode=\\x1b[31m"
