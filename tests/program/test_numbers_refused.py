"""Whole numbers that TensorFlow does not have, and names that no disk has."""

import pytest

from tests.program import command
from tests.program.training import IMAGE


@pytest.mark.parametrize(
  "name",
  [
    "train.max_steps",
    "train.log_interval_steps",
    "train.save_interval_steps",
    "train.keep_checkpoints",
    "train.eval_interval_steps",
    "pipeline.intra_op_threads",
  ],
)
def test_a_number_that_is_too_large_is_refused(tmp_path, name):
  override = f"--set={name}={2**63}"
  found = command.refusal(f"--model={IMAGE}", f"--logdir={tmp_path}", override)
  assert found == (
    f"error: {name}=9223372036854775808: must be at most 9223372036854775807"
  )


def test_a_folder_whose_name_has_a_null_byte_is_refused():
  found = command.refusal(f"--model={IMAGE}", "--logdir=a\0b")
  assert found == "error: --logdir='a\\x00b': a name of a folder has no null byte"
