"""A mistake in an experiment is shown with its file and line."""

import re

import pytest

from models.transformer.block import TransformerBlock
from tests.program import command, tiny, training

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


@pytest.fixture(scope="module")
def trained(tf, tmp_path_factory):
  """Gives the arguments for a run with a checkpoint of step 1."""
  folder = tmp_path_factory.mktemp("char")
  training.train(folder, training.CHAR, *training.TINY_CHAR, "train.max_steps=1")
  sets = [f"--set={change}" for change in training.TINY_CHAR]
  return (f"--model={training.CHAR}", f"--logdir={folder}", *sets)


@pytest.mark.parametrize("mode", ["train", "eval", "export", "decode"])
@pytest.mark.parametrize("what", ["code", "shape"])
def test_a_mistake_in_a_layer_is_one_line_of_the_same_form_in_every_mode(
  tf, trained, monkeypatch, capsys, mode, what
):
  def fprop(self, theta, *inputs):
    if what == "shape":
      return tf.zeros([2]) + tf.zeros([3])
    raise KeyError("zz")

  monkeypatch.setattr(TransformerBlock, "FProp", fprop)
  steps = ("--max_steps=3",) if mode == "train" else ()
  with pytest.raises(SystemExit) as ended:
    command.run(*trained, f"--mode={mode}", *steps)
  assert ended.value.code == 1
  (line,) = capsys.readouterr().err.splitlines()
  doing = {
    "train": "building the step",
    "eval": "building the evaluation",
    "export": "exporting step 1",
    "decode": "decoding",
  }
  number = fprop.__code__.co_firstlineno + (2 if what == "shape" else 3)
  place = f"layer 'layer_0' (stage 0 on /device:CPU:0), test_refusal.py:{number}: "
  error = "KeyError: 'zz'" if what == "code" else "ValueError: Dimensions must be equal"
  assert line.startswith(f"error: {doing[mode]}: {place}{error}")


def test_a_mistake_that_a_layer_of_tfpipe_meets_has_its_line(
  tf, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(tiny, "rng", None)
  arguments = (f"--model={training.IMAGE}", f"--logdir={tmp_path}", "--mode=train")
  with pytest.raises(SystemExit):
    command.run(*arguments)
  line = capsys.readouterr().err.splitlines()[-1]
  assert re.search(r"layer 'block_0' .*, tiny\.py:\d+: AttributeError: 'None", line)
