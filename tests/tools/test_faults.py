"""The fault suite with few faults: `python -m tools.faults` has all of them."""

import pathlib
import subprocess
import sys

import pytest

from tools import fault_runs, faults
from tools.fault_kills import Kills

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
  """The last checkpoint of a run that nobody disturbs."""
  folder = tmp_path_factory.mktemp("undisturbed")
  assert fault_runs.run(folder).code == 0
  return fault_runs.final(folder)


def test_killed_runs_continue_and_end_with_the_same_bits(tmp_path, reference):
  kills = Kills(tmp_path, reference, seed=1)
  outcome = kills.run(2)
  assert outcome.passed, outcome.said
  assert kills.num_kills == 2


def test_a_hung_layer_is_named_and_what_was_saved_leads_to_the_same_end(
  tmp_path, reference
):
  (spin,) = (error for error in faults.ERRORS if error.name == "a layer that hangs")
  for outcome in faults.errors(tmp_path, reference, [spin]):
    assert outcome.passed, outcome


def test_the_supervisor_starts_a_killed_trainer_again(tmp_path, reference):
  outcome = faults.restarts(tmp_path, reference, kills=1)
  assert outcome.passed, outcome


def test_what_differs_is_not_equal(reference):
  other = fault_runs.final(pathlib.Path("no such folder"))
  assert other is None
  assert not fault_runs.equal(reference, other)
  assert fault_runs.equal(reference, reference)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--only=kill"], "error: --only=kill: must be among kills, files, disk, errors"),
    (["kills"], "error: unexpected arguments: kills"),
  ],
)
def test_what_the_suite_does_not_know_is_refused(arguments, message):
  ended = subprocess.run(
    [sys.executable, "-m", "tools.faults", *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  assert ended.returncode == 1
  assert ended.stderr.startswith(message)
