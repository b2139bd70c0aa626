"""The check of predictions sums up its runs."""

import pathlib

import pytest

from tools import check_prediction


def _run(predicted, measured):
  names = ("step", "bubble")
  return {
    "predicted": dict(zip(names, predicted, strict=True)),
    "measured": dict(zip(names, measured, strict=True)),
  }


def test_differences_are_medians_of_each_runs_own():
  runs = [
    _run((1.0, 0.10), (1.02, 0.11)),  # +2 %, +1 point
    _run((2.0, 0.10), (1.90, 0.08)),  # -5 %, -2 points
    _run((4.0, 0.10), (4.40, 0.15)),  # +10 %, +5 points
  ]
  assert check_prediction.row("gpipe", runs) == [
    *("gpipe", "2 s", "1.9 s", "+2.0%", "10.0%", "11.0%", "+1.0 points")
  ]


def test_a_program_that_fails_ends_with_its_own_words():
  with pytest.raises(SystemExit, match=r"tfpipe.trainer failed: error: there is no "):
    check_prediction._run("tfpipe.trainer", "--model=lm.nothing.There", "--mode=plan")


def test_no_arguments_are_taken(tmp_path: pathlib.Path):
  with pytest.raises(SystemExit, match="unexpected arguments: char"):
    check_prediction.main(["check_prediction", "char"])
