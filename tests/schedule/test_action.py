from __future__ import annotations

import pytest

from tfpipe.schedule import KINDS, Action


def test_an_action_is_one_micro_batch_of_pipe_0_unless_told() -> None:
  assert Action("F", 2, 3) == Action("F", 2, 3, pipe=0, size=1, version=0)
  assert list(Action("F", 2, 3).micro_batches) == [3]
  assert list(Action("F", 2, 3, size=2).micro_batches) == [3, 4]


@pytest.mark.parametrize(
  ("action", "text"),
  [
    (Action("F", 2, 3), "F (forward of stage 2, micro-batch 3)"),
    (Action("BW", 0, 1, pipe=1), "BW (backward of stage 0, micro-batch 1, pipe 1)"),
    (Action("F", 0, 4, size=2), "F (forward of stage 0, micro-batches 4 to 5)"),
    (Action("U", 1, 0), "U (update of stage 1, number 0)"),
  ],
)
def test_an_action_says_what_it_is(action: Action, text: str) -> None:
  assert str(action) == text


def test_every_kind_has_words() -> None:
  assert len({str(Action(kind, 0, 0)) for kind in KINDS}) == 6
