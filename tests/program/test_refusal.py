"""A mistake in an experiment is shown with its file and line."""

import pytest

from tests.program import command

# An experiment with a method of its own.
TEXT = """
from tests.program.tiny import Image
from tfpipe import registry

@registry.Register
class Mine(Image):
  def {method}(self):
    {body}
"""


# Method, its body, and what is said of it.
CASES = [
  ("Task", "return {}['zz']", "mine_0.py:8: KeyError: 'zz'"),
  ("Train", "raise KeyError", "mine_1.py:8: KeyError: "),
  ("Test", "return None.foo", "mine_2.py:8: AttributeError: 'NoneType' object has"),
  (
    "Task",
    "return super().Task().Set(num_block=3)",
    "mine_3.py:8: AttributeError: Params of Classifier has no parameter 'num_block'; "
    "did you mean 'num_blocks'?",
  ),
  ("Train", "raise ValueError('too many')", "too many"),
  ("Model", "return None", "mine_5.Mine.Model() must return Params, got None"),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_mistake_in_an_experiment_has_its_file_and_line(
  tmp_path, monkeypatch, number
):
  method, body, said = CASES[number]
  name = f"mine_{number}"
  (tmp_path / f"{name}.py").write_text(TEXT.format(method=method, body=body))
  monkeypatch.syspath_prepend(tmp_path)
  found = command.refusal(f"--model={name}.Mine", "--mode=plan")
  assert found.startswith(f"error: {said}")
  assert "\n" not in found
