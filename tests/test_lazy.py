import subprocess
import sys

import pytest


def _run(program):
  run = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  return run.stdout


def test_tensorflow_is_imported_at_the_first_use_of_an_attribute():
  program = """
import sys
from tfpipe.lazy import tf
from tfpipe.layers.base import Layer
assert "tensorflow" not in sys.modules
assert tf.__name__ == "tensorflow"
assert "tensorflow" not in sys.modules
print(tf.constant(2) + 3)
import tensorflow
assert tf.Variable is tensorflow.Variable
"""
  assert "5" in _run(program)


def test_an_unknown_attribute_is_an_attribute_error(tf):
  from tfpipe.lazy import tf as lazy_tf

  assert lazy_tf.nest is tf.nest
  with pytest.raises(AttributeError, match="constnat"):
    lazy_tf.constnat  # noqa: B018
