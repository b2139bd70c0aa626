import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tfpipe.cost import ArraySpec
from tfpipe.program import checkpoint as checkpoint_lib
from tfpipe.program.checkpoint import (
  Checkpoint,
  check_matches,
  load,
  newest,
  save,
  save_best,
)

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
  with pytest.raises(
    OSError, match="step 8 could not be saved: No space left"
  ) as error:
    save(tmp_path, make(8), keep=1)
  assert error.value.filename == str(tmp_path)
  assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


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


def needed():
  return {name: ArraySpec(a.shape, a.dtype.name) for name, a in ARRAYS.items()}


def test_the_very_entries_of_a_run_match():
  check_matches(make(), needed())


def test_missing_unknown_and_misshapen_entries_are_all_named():
  expected = needed()
  del expected["learner/step"]
  expected["weights/layer_0/w"] = ArraySpec((3, 2))
  expected["weights/layer_0/v"] = ArraySpec((4,))
  expected["step"] = ArraySpec((), "int32")
  with pytest.raises(ValueError, match="of another model; nothing was") as error:
    check_matches(make(), expected)
  lines = str(error.value).splitlines()
  assert "step 7" in lines[0]
  assert lines[1:] == [
    "  missing: weights/layer_0/v (4,); did you mean 'weights/layer_0/w'?",
    "  not in this model: learner/step ()",
    "  weights/layer_0/w: (2, 3) in the checkpoint, (3, 2) in this model",
    "  step: int64 in the checkpoint, int32 in this model",
  ]


def test_equal_runs_write_equal_files(tmp_path):
  first = save(tmp_path / "a", make(), keep=1).read_bytes()
  assert save(tmp_path / "b", make(), keep=3).read_bytes() == first


def test_a_file_that_may_not_be_read_is_no_damage(tmp_path, monkeypatch):
  save(tmp_path, make(5), keep=2)
  forbidden = save(tmp_path, make(6), keep=2)
  whole = pathlib.Path.open

  def refuse(path, *arguments):
    if path == forbidden:
      raise PermissionError(13, "Permission denied", str(path))
    return whole(path, *arguments)

  monkeypatch.setattr(pathlib.Path, "open", refuse)
  with pytest.raises(PermissionError, match=r"Permission denied: .*00006\.npz"):
    newest(tmp_path)


def test_a_folder_that_may_not_be_read_is_not_taken_for_an_empty_one(
  tmp_path, monkeypatch
):
  def refuse(path):
    raise PermissionError(13, "Permission denied", str(path))

  monkeypatch.setattr(os, "listdir", refuse)
  with pytest.raises(PermissionError, match="Permission denied"):
    newest(tmp_path)


def saved_at(folder, hours, keep, every_hours):
  """Saves steps at these times; gives the steps that are left."""
  for step, hour in enumerate(hours, 1):
    path = save(folder, make(step), keep, every_hours)
    os.utime(path, (hour * 3600, hour * 3600))
  return [int(path.stem[-8:]) for path in checkpoint_lib.paths(folder)]


@pytest.mark.parametrize(
  ("every_hours", "left"),
  [
    (0.0, [9, 10]),
    # Saved at 1.0, 1.4, ... 4.6 hours: the first, then each an hour or more later.
    (1.0, [1, 4, 7, 9, 10]),
    (2.0, [1, 6, 9, 10]),
    (100.0, [1, 9, 10]),
    (0.1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
  ],
)
def test_one_of_so_many_hours_is_kept_beside_the_newest(tmp_path, every_hours, left):
  hours = [1 + 0.4 * n for n in range(10)]
  assert saved_at(tmp_path, hours, 2, every_hours) == left


def test_a_clock_that_was_set_back_starts_the_hours_anew(tmp_path):
  assert saved_at(tmp_path, [50, 50.5, 10, 10.5, 11.5, 11.6], 1, 1.0) == [1, 3, 5, 6]


def test_the_best_is_one_file_beside_the_others_and_knows_why(tmp_path):
  save(tmp_path, make(1), keep=1)
  (tmp_path / "best.123.partial").write_bytes(b"half of it")
  for step, value in ((1, 0.25), (2, 0.1 + 0.2)):
    best = dataclasses.replace(make(step), score=("accuracy", value))
    assert save_best(tmp_path, best) == tmp_path / "best.npz"
    assert_equal(load(tmp_path / "best.npz"), best)
  save(tmp_path, make(3), keep=1)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "best.npz",
    "checkpoint-00000003.npz",
  ]
  found, _ = newest(tmp_path)
  assert found is not None
  assert (found.step, found.score) == (3, None)


def test_a_checkpoint_without_a_score_in_it_is_one_of_an_earlier_version(tmp_path):
  meta = {"step": 7, "experiment": "e", "params": "p", "num_entries": 1}
  with (tmp_path / "checkpoint-00000007.npz").open("wb") as file:
    np.savez(file, __meta__=np.array(json.dumps(meta)), w=np.zeros(3))
  found, _ = newest(tmp_path)
  assert found is not None
  assert found.score is None
