"""Planning needs the sizes of slots without TensorFlow's seconds of import."""

import subprocess
import sys

PROGRAM = """
import sys
from tfpipe import optimizers
learner = optimizers.Learner.Params().Set(
  optimizer=optimizers.Adafactor.Params(),
  lr_schedule=optimizers.LinearWarmup.Params(),
  ema_decay=0.9,
  accumulate_steps=2,
).Instantiate()
print({name: spec.size for name, spec in learner.state_specs("w", (3, 5)).items()})
print(learner.state_bytes({"w": (3, 5), "b": (5,)}))
print(float(optimizers.Cosine.Params().Instantiate().value(500)))
assert "tensorflow" not in sys.modules
"""


def test_learner_and_schedules_answer_without_importing_tensorflow():
  run = subprocess.run(
    [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
  )
  assert run.returncode == 0, run.stderr
  sizes, num_bytes, multiplier = run.stdout.splitlines()
  assert sizes == str(
    {"slots/w/row": 3, "slots/w/column": 5, "ema/w": 15, "accumulators/w": 15}
  )
  assert num_bytes == str(
    {"slots": 4 * (3 + 5 + 5), "ema": 4 * 20, "accumulators": 4 * 20}
  )
  assert float(multiplier) == 0.5
