from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tfpipe import schedule
from tfpipe.schedule import gpipe, interleaved, one_f_one_b, text, zero_bubble


def test_schedules_are_found_by_name() -> None:
  assert schedule.NAMES == (
    "gpipe",
    "1f1b",
    "eager_1f1b",
    "interleaved",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "zb_interleaved",
    "chimera",
    "chimera_doubling",
    "chimera_halving",
    "dualpipe_v",
  )
  assert schedule.get("gpipe") is gpipe.schedule
  assert schedule.get("zb_h2") is zero_bubble.h2


@pytest.mark.parametrize("name", schedule.NAMES)
def test_a_schedule_is_called_by_its_name(name: str) -> None:
  assert schedule.make(name, 4, 8).name == name
  assert schedule.make(name, 4, 8, True).name == f"{name}+R"
  assert schedule.make(name, 4, 8).num_devices == 4
  assert schedule.make(name, 4, 8).num_micro_batches == 8


@pytest.mark.parametrize("name", schedule.NAMES)
@pytest.mark.parametrize("option", ["stages_per_device", "group_size", "num_pairs"])
def test_options_that_a_schedule_lacks_are_refused(name: str, option: str) -> None:
  assert schedule.make(name, 4, 8, **{option: 0}) == schedule.make(name, 4, 8)
  value = {"stages_per_device": 2, "group_size": 4, "num_pairs": 1}[option]
  if option in schedule.OPTIONS[name]:
    schedule.make(name, 4, 8, **{option: value})
  else:
    with pytest.raises(ValueError, match=rf"{name}: {option} is {value}, but this"):
      schedule.make(name, 4, 8, **{option: value})


def test_make_passes_its_arguments_on() -> None:
  made = schedule.make("1f1b", 3, 5, remat=True)
  assert made == one_f_one_b.schedule(3, 5, remat=True)
  made = schedule.make("interleaved", 2, 6, stages_per_device=3, group_size=3)
  assert made == interleaved.schedule(2, 6, stages_per_device=3, group_size=3)


def test_unknown_names_list_the_known_and_the_nearest() -> None:
  with pytest.raises(LookupError, match=r"'gpip' is not one of gpipe, 1f1b.*'gpipe'\?"):
    schedule.make("gpip", 2, 2)


@pytest.mark.parametrize("name", schedule.NAMES)
def test_bad_sizes_are_refused_by_name_and_value(name: str) -> None:
  for k, m, match in (
    (0, 2, "num_devices is 0"),
    (2.0, 2, r"num_devices is 2\.0"),
    (2, 0, "num_micro_batches is 0"),
    (2, -4, "num_micro_batches is -4"),
    (True, 2, "num_devices is True"),
  ):
    with pytest.raises(ValueError, match=f"{name}: {match}: expected"):
      schedule.make(name, k, m)  # type: ignore[arg-type]


@pytest.mark.parametrize(
  ("name", "sizes", "options", "match"),
  [
    ("chimera", (3, 4), {}, "chimera: num_devices is 3: expected an even number"),
    ("chimera", (8, 4), {"num_pairs": 3}, "num_pairs is 3: expected one of 1, 2, 4"),
    ("chimera_halving", (4, 7), {}, "num_micro_batches is 7: expected an even"),
    ("zb_v", (4, 8), {"stages_per_device": 3}, "zb_v: stages_per_device is 3: expec"),
    ("dualpipe_v", (4, 8), {"stages_per_device": 1}, "stages_per_device is 1: expec"),
    ("looped_bfs", (4, 8), {"stages_per_device": -1}, "stages_per_device is -1"),
    ("interleaved", (4, 9), {"group_size": 4}, "group_size is 4: expected one of 5, 9"),
    ("interleaved", (4, 8), {"group_size": 9}, "group_size is 9: expected one of 4, 8"),
    ("zb_interleaved", (4, 3), {"group_size": 2}, "group_size is 2: expected one of 3"),
  ],
)
def test_what_a_schedule_cannot_do_is_refused_with_what_it_can(
  name: str, sizes: tuple[int, int], options: dict[str, int], match: str
) -> None:
  with pytest.raises(ValueError, match=match):
    schedule.make(name, *sizes, **options)


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_schedule_may_come_from_a_file(tmp_path: pathlib.Path, suffix: str) -> None:
  path = tmp_path / f"mine.{suffix}"
  written = dataclasses.replace(one_f_one_b.schedule(2, 3, remat=True), name="mine")
  path.write_text(text.to_csv(written) if suffix == "csv" else text.to_json(written))
  assert schedule.make(str(path), 2, 3, remat=True) == written
  for k, m, remat, match in (
    (4, 3, True, "num_partitions is 4, but the file's is 2"),
    (2, 4, True, "num_micro_batches is 4, but the file's is 3"),
    (2, 3, False, "the file recomputes each cell: expected remat=cell"),
  ):
    with pytest.raises(ValueError, match=rf"mine\.{suffix}: {match}"):
      schedule.make(str(path), k, m, remat)
  with pytest.raises(ValueError, match="num_pairs is 1, but this schedule has no opt"):
    schedule.make(str(path), 2, 3, True, num_pairs=1)


def test_a_file_without_recomputation_is_not_for_remat(tmp_path: pathlib.Path) -> None:
  path = tmp_path / "mine.csv"
  path.write_text(text.to_csv(one_f_one_b.schedule(2, 3)))
  with pytest.raises(ValueError, match="no recomputation: expected remat=none, or lay"):
    schedule.make(str(path), 2, 3, remat=True)


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_file_s_sizes_are_compared_before_anything_is_made_of_that_size(
  tmp_path: pathlib.Path, suffix: str
) -> None:
  path = tmp_path / f"mine.{suffix}"
  huge = dataclasses.replace(one_f_one_b.schedule(2, 3), num_micro_batches=10**12)
  path.write_text(text.to_csv(huge) if suffix == "csv" else text.to_json(huge))
  with pytest.raises(ValueError, match=f"num_micro_batches is 3, .* {10**12}"):
    schedule.make(str(path), 2, 3)


def test_a_file_may_lie_in_the_home_folder(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "mine.csv").write_text(text.to_csv(one_f_one_b.schedule(2, 3)))
  assert schedule.make("~/mine.csv", 2, 3) == one_f_one_b.schedule(2, 3)


def test_the_stages_of_a_schedule_are_known_before_it_is_made() -> None:
  for name in schedule.NAMES:
    assert schedule.num_stages(name, 4) == schedule.make(name, 4, 8).num_stages, name
  assert schedule.num_stages("interleaved", 4, 3) == 12


def test_many_group_sizes_are_not_all_listed() -> None:
  # 3999 divided by one of these leaves 0, or 4 at least.
  expected = r"expected one of 5, 8, 10, 11, 13, 14, \.\.\., 3999 with 4 devices"
  with pytest.raises(ValueError, match=expected):
    schedule.make("interleaved", 4, 3999, group_size=3)


def test_a_file_that_is_not_sound_is_refused(tmp_path: pathlib.Path) -> None:
  path = tmp_path / "mine.csv"
  good = text.to_csv(gpipe.schedule(2, 2))
  path.write_text(good.replace("0,F,0,1,0,1,0\n", ""))
  with pytest.raises(ValueError, match=r"mine\.csv: gpipe: there is no action F of st"):
    schedule.make(str(path), 2, 2)
  path.write_text(good.replace("0,F,0,1,", "0,F,0,one,"))
  with pytest.raises(ValueError, match=r"mine\.csv: line 9: micro_batch is 'one'"):
    schedule.make(str(path), 2, 2)
  with pytest.raises(FileNotFoundError, match=r"missing\.json"):
    schedule.make(str(tmp_path / "missing.json"), 2, 2)
