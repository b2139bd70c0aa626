"""Disks without room: whatever the size at which it ends, nothing is lost."""

import contextlib
import os
import pathlib
import resource

import numpy as np
import pytest

from tfpipe.program import checkpoint
from tfpipe.program.checkpoint import Checkpoint, newest, save, save_best


def make(step):
  # Larger and smaller than what zipfile and the file keep back before they write.
  arrays = {"w": np.full(20_000, step, np.float32), "b": np.array(step)}
  return Checkpoint(step, arrays, "e", "p" * 300, ("loss", 1.0))


@contextlib.contextmanager
def longest_file(num_bytes):
  """Lets files of this process grow no longer: like a full disk, and real."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [lambda f, c: save(f, c, keep=1), save_best])
def test_a_file_that_cannot_be_written_to_its_end_loses_nothing(tmp_path, write):
  path = write(tmp_path, make(1))
  content = path.read_bytes()
  for limit in [*range(0, len(content), len(content) // 40), len(content) - 1]:
    with longest_file(limit), pytest.raises(OSError, match="step 2 could not be saved"):
      write(tmp_path, make(2))
    assert [left.name for left in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == content
  with longest_file(len(content)):
    write(tmp_path, make(2))


def test_what_could_not_be_saved_is_saved_once_there_is_room(tmp_path):
  save(tmp_path, make(1), keep=2)
  with longest_file(1000), pytest.raises(OSError, match="File too large"):
    save(tmp_path, make(2), keep=2)
  save(tmp_path, make(2), keep=2)
  found, damaged = newest(tmp_path)
  assert found is not None
  assert (found.step, damaged) == (2, [])


@pytest.mark.parametrize(
  ("put", "kind"),
  [
    (pathlib.Path.mkdir, "a folder"),
    (os.mkfifo, "a pipe or a device"),
    (lambda path: path.symlink_to("nothing"), "a link that leads nowhere"),
    (lambda path: path.symlink_to(path.name), "a link that leads nowhere"),
  ],
)
def test_what_is_no_file_is_skipped_and_named(tmp_path, put, kind):
  save(tmp_path, make(1), keep=2)
  path = tmp_path / "checkpoint-00000002.npz"
  put(path)
  message = f"{path} is not a complete checkpoint: this is {kind}; remove it"
  found, damaged = newest(tmp_path)
  assert found is not None
  assert (found.step, damaged) == (1, [message])
  if kind != "a folder":  # which is refused before the first step
    save(tmp_path, make(2), keep=2, every_hours=1)
    assert newest(tmp_path)[1] == []


def test_a_link_that_leads_nowhere_does_not_keep_a_later_step_from_being_saved(
  tmp_path,
):
  (tmp_path / "checkpoint-00000001.npz").symlink_to("nothing")
  save(tmp_path, make(2), keep=1, every_hours=1)
  assert (tmp_path / "checkpoint-00000002.npz").is_file()


def test_one_that_a_training_removes_meanwhile_is_not_taken_for_damaged(
  tmp_path, monkeypatch
):
  load = checkpoint.load
  save(tmp_path, make(1), keep=1)

  def load_late(path):
    if path.name == "checkpoint-00000001.npz":
      save(tmp_path, make(2), keep=1)  # has step 1 removed
    return load(path)

  monkeypatch.setattr(checkpoint, "load", load_late)
  found, damaged = newest(tmp_path)
  assert found is not None
  assert (found.step, damaged) == (2, [])


@pytest.mark.parametrize(
  "content", [b"", b"max_steps : 3\n", b"\x80\x04.", b"\x93NUMPY"]
)
def test_what_is_no_zip_is_refused_without_advice_to_load_it(tmp_path, content):
  path = tmp_path / "checkpoint-00000001.npz"
  path.write_bytes(content)
  message = (
    f"{path} is not a complete checkpoint: ValueError: it does not begin as a zip"
  )
  with pytest.raises(ValueError, match=message) as caught:
    checkpoint.load(path)
  assert "pickle" not in str(caught.value)
