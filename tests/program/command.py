"""The trainer's command line inside the test process."""

from __future__ import annotations

import pytest
from absl.testing import flagsaver

from tfpipe import trainer


def run(*arguments: str) -> None:
  """Does what `python -m tfpipe.trainer` does with these arguments.

  Raises:
    SystemExit: with the message, as the program ends.
  """
  with flagsaver.flagsaver():
    trainer.main(trainer.parse_flags(["trainer", *arguments]))


def refusal(*arguments: str) -> str:
  """Gives the message with which the program refuses to run."""
  with pytest.raises(SystemExit) as ended:
    run(*arguments)
  # The exit code of a message is 1.
  assert isinstance(ended.value.code, str)
  return ended.value.code
