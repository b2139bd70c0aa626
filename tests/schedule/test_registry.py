from __future__ import annotations

import pytest

from tfpipe import schedule
from tfpipe.schedule import gpipe, one_f_one_b


def test_schedules_are_found_by_name() -> None:
  assert schedule.NAMES == ("gpipe", "1f1b")
  assert schedule.get("gpipe") is gpipe.schedule
  assert schedule.get("1f1b") is one_f_one_b.schedule


def test_make_passes_its_arguments_on() -> None:
  made = schedule.make("1f1b", 3, 5, remat=True)
  assert made == one_f_one_b.schedule(3, 5, remat=True)
  assert schedule.make("gpipe", 3, 5) == gpipe.schedule(3, 5, remat=False)


def test_unknown_names_list_the_known_and_the_nearest() -> None:
  with pytest.raises(LookupError, match=r"'gpip' is not one of gpipe, 1f1b.*gpipe"):
    schedule.make("gpip", 2, 2)


def test_bad_sizes_are_refused_by_name_and_value() -> None:
  with pytest.raises(ValueError, match="num_micro_batches is 0"):
    schedule.make("gpipe", 2, 0)
