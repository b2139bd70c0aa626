import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import Checkpoint, check_matches, load, newest, save

ARRAYS = {
  "weights/layer_0/w": np.arange(6, dtype=np.float32).reshape(2, 3),
  "weights/layer_0/b": np.array([np.nan, np.inf, -np.inf, -0.0], np.float32),
  "slots/layer_0/w/m": np.full((2, 3), np.float32(1e-45)),
  "learner/step": np.array(2**62 + 1, np.int64),
  "empty": np.zeros((0, 3), np.float32),
  "step": np.array(7, np.int64),
}
PARAMS = "name : 'Größe\\n'\ntrain.seed : 0\n"


def make(step=7, arrays=ARRAYS):
  return Checkpoint(step, dict(arrays), "image.digits.Small", PARAMS)


def assert_equal(found, expected):
  rest = dataclasses.replace(found, arrays={})
  assert rest == dataclasses.replace(expected, arrays={})
  assert list(found.arrays) == list(expected.arrays)
  for name, array in expected.arrays.items():
    assert found.arrays[name].dtype == array.dtype, name
    assert found.arrays[name].shape == array.shape, name
    assert found.arrays[name].tobytes() == array.tobytes(), name


def test_everything_comes_back_bit_for_bit(tmp_path):
  path = save(tmp_path / "new" / "folder", make(), keep=1)
  assert path == tmp_path / "new" / "folder" / "checkpoint-00000007.npz"
  assert_equal(load(path), make())


def test_numpy_alone_can_read_it(tmp_path):
  with np.load(save(tmp_path, make(), keep=1)) as file:
    np.testing.assert_array_equal(file["weights/layer_0/w"], [[0, 1, 2], [3, 4, 5]])


def test_only_the_newest_are_kept(tmp_path):
  for step in (1, 2, 3, 10, 11):
    save(tmp_path, make(step), keep=2)
  assert [path.name for path in checkpoint_lib.paths(tmp_path)] == [
    "checkpoint-00000010.npz",
    "checkpoint-00000011.npz",
  ]


def test_newest_goes_by_the_step_even_where_the_number_grows_longer(tmp_path):
  for step in (99_999_999, 100_000_000):
    save(tmp_path, make(step), keep=5)
  found, _ = newest(tmp_path)
  assert found is not None
  assert found.step == 100_000_000


def test_saving_behind_a_damaged_newer_one_never_removes_what_was_saved(tmp_path):
  save(tmp_path, make(20), keep=1).write_bytes(b"")
  path = save(tmp_path, make(10), keep=1)
  assert path.exists()
  found, damaged = newest(tmp_path)
  assert found is not None
  assert found.step == 10
  assert len(damaged) == 1


def test_an_empty_folder_or_none_has_no_checkpoint(tmp_path):
  assert newest(tmp_path) == (None, [])
  assert newest(tmp_path / "missing") == (None, [])


def test_files_that_are_not_checkpoints_are_left_alone(tmp_path):
  others = ["checkpoint-7.npz", "checkpoint-00000009.npz.bak", "params.txt"]
  for name in [*others, "checkpoint.partial"]:
    (tmp_path / name).write_text("junk")
  assert newest(tmp_path) == (None, [])
  save(tmp_path, make(), keep=1)
  found, damaged = newest(tmp_path)
  assert found is not None
  assert found.step == 7
  assert damaged == []
  assert all((tmp_path / name).read_text() == "junk" for name in others)


def test_a_save_that_was_cut_off_leaves_nothing_behind_once_the_next_is_done(tmp_path):
  (tmp_path / "checkpoint.partial").write_bytes(b"half of it")
  save(tmp_path, make(10), keep=1)
  assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000010.npz"]


def test_a_failed_write_leaves_the_previous_checkpoint_as_it_was(tmp_path, monkeypatch):
  before = save(tmp_path, make(), keep=1).read_bytes()

  def fail(file, **arrays):
    file.write(b"half of it")
    raise OSError("No space left on device")

  monkeypatch.setattr(np, "savez", fail)
  with pytest.raises(OSError, match="No space left"):
    save(tmp_path, make(8), keep=1)
  assert [path.read_bytes() for path in checkpoint_lib.paths(tmp_path)] == [before]


def _truncate(path):
  path.write_bytes(path.read_bytes()[:-200])


def _flip(path):
  content = bytearray(path.read_bytes())
  place = content.index(ARRAYS["weights/layer_0/w"].tobytes())
  content[place + 3] ^= 1
  path.write_bytes(content)


def _empty(path):
  path.write_bytes(b"")


def _not_a_zip(path):
  path.write_text("this is a text")


def _one_array(path):
  with path.open("wb") as file:
    np.save(file, np.zeros(3))


def _no_meta(path):
  with path.open("wb") as file:
    np.savez(file, step=np.array(7))


def _wrong_meta(path):
  with path.open("wb") as file:
    np.savez(file, __meta__=np.array("[1, 2]"))


def _pickled(path):
  with path.open("wb") as file:
    np.savez(file, **{"__meta__": np.array({"a": 1}, object)})


def _folder(path):
  path.unlink()
  path.mkdir()


DAMAGES = [
  _truncate,
  _flip,
  _empty,
  _not_a_zip,
  _one_array,
  _no_meta,
  _wrong_meta,
  _pickled,
  _folder,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_complete_one_is_taken_and_the_damaged_ones_are_named(
  tmp_path, damage
):
  for step in (5, 6, 7):
    save(tmp_path, make(step), keep=3)
  for step in (6, 7):
    damage(tmp_path / f"checkpoint-0000000{step}.npz")
  found, damaged = newest(tmp_path)
  assert found is not None
  assert_equal(found, make(5))
  assert len(damaged) == 2
  for step, message in zip((7, 6), damaged, strict=True):
    assert re.search(rf"checkpoint-0000000{step}\.npz is not a complete", message)


@pytest.mark.parametrize("damage", DAMAGES)
def test_if_all_are_damaged_that_is_an_error_which_names_all(tmp_path, damage):
  for step in (6, 7):
    damage(save(tmp_path, make(step), keep=3))
  with pytest.raises(ValueError, match=r"(?s)no complete .*00007\.npz.*00006\.npz"):
    newest(tmp_path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
  with pytest.raises(ValueError, match=r"checkpoint-00000001\.npz is not a complete"):
    load(tmp_path / "checkpoint-00000001.npz")


def test_a_flipped_bit_in_any_byte_is_noticed_or_harmless(tmp_path):
  expected = make(arrays={"w": np.array([1.5, np.nan], np.float32)})
  path = save(tmp_path, expected, keep=1)
  content = path.read_bytes()
  noticed = 0
  with path.open("r+b", buffering=0) as file:
    for place, byte in enumerate(content):
      os.pwrite(file.fileno(), bytes([byte ^ 1 << place % 8]), place)
      try:
        found = load(path)
      except ValueError:
        noticed += 1
      else:
        assert_equal(found, expected)
      os.pwrite(file.fileno(), bytes([byte]), place)
  assert noticed > len(content) / 2


def test_every_truncation_is_noticed(tmp_path):
  path = save(tmp_path, make(), keep=1)
  for length in range(path.stat().st_size - 1, -1, -5):
    os.truncate(path, length)
    with pytest.raises(ValueError, match="is not a complete checkpoint"):
      load(path)


_SAVER = """
import pathlib, sys
import numpy as np
from tfpipe.program.checkpoint import Checkpoint, save
for step in range(1, 10**6):
  arrays = {f"weights/{i}": np.full(300_000, step, np.float32) for i in range(4)}
  save(pathlib.Path(sys.argv[1]), Checkpoint(step, arrays, "e", "p"), keep=2)
  print(step, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.006, 0.009, 0.012])
def test_a_saver_killed_at_any_moment_leaves_a_complete_newest_checkpoint(
  tmp_path, delay
):
  command = [sys.executable, "-c", _SAVER, str(tmp_path)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:
    assert saver.stdout
    seen = int(saver.stdout.readline())
    time.sleep(delay)
    saver.kill()
    seen = max([seen, *map(int, saver.stdout.read().split())])
    assert saver.wait() == -signal.SIGKILL
  found, damaged = newest(tmp_path)
  assert damaged == []
  assert found is not None
  assert found.step in (seen, seen + 1)
  assert len(found.arrays) == 4
  for array in found.arrays.values():
    assert array.shape == (300_000,)
    assert (array == found.step).all()


def test_the_very_entries_of_a_run_match():
  check_matches(make(), {name: array.shape for name, array in ARRAYS.items()})


def test_missing_unknown_and_misshapen_entries_are_all_named():
  expected = {name: array.shape for name, array in ARRAYS.items()}
  del expected["learner/step"]
  expected["weights/layer_0/w"] = (3, 2)
  expected["weights/layer_0/v"] = (4,)
  with pytest.raises(ValueError, match="of another model; nothing was") as error:
    check_matches(make(), expected)
  lines = str(error.value).splitlines()
  assert "step 7" in lines[0]
  assert lines[1:] == [
    "  missing: weights/layer_0/v (4,); did you mean 'weights/layer_0/w'?",
    "  not in this model: learner/step ()",
    "  weights/layer_0/w: (2, 3) in the checkpoint, (3, 2) in this model",
  ]
