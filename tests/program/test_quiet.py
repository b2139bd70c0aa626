"""TensorFlow's start-up notes are held back, and nothing else."""

import os

import pytest

from tfpipe.program import quiet

NOTES = (
  "WARNING: All log messages before absl::InitializeLog() is called are written to "
  "STDERR\n"
  "I0000 00:00:1796005746.946472   23347 port.cc:153] oneDNN operations are on.\n"
  "E0000 00:00:1796005748.972490   23347 cuda_platform.cc:52] failed call to cuInit\n"
)


def test_notes_are_not_shown_and_the_rest_is_in_order(capfd):
  with quiet.start_up():
    os.write(2, NOTES.encode())
    os.write(2, b"W0000 00:00:1.0 7 gpu_device.cc:1] no memory\nlast words\n")
  os.write(2, b"later\n")
  shown = capfd.readouterr().err
  assert shown == "W0000 00:00:1.0 7 gpu_device.cc:1] no memory\nlast words\nlater\n"


def _break():
  with quiet.start_up():
    os.write(2, b"why it broke\n")
    raise ValueError("broken")


def test_an_error_shows_what_was_held_back(capfd):
  with pytest.raises(ValueError, match="broken"):
    _break()
  assert capfd.readouterr().err == "why it broke\n"
