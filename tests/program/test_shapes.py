"""Mini-batches of several shapes in one run: each is right, or refused at the door."""

import numpy as np
import pytest

from tests.pipeline import harness
from tests.pipeline.networks import Network, text_batches, tokens
from tests.pipeline.reference import Reference, global_norm, mean_gradients
from tests.program import training
from tests.program.tiny import Text
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.program.train import Trainer

WINDOW = 3
# (rows, tokens) of each call; shapes change inside the first, second and third window.
SIZES = [(8, 6), (4, 3), (8, 6), (4, 3), (8, 2), (8, 6), (8, 2), (8, 2), (4, 3)]


def test_shapes_may_change_inside_every_window_of_accumulated_calls(tf):
  network = Network(tokens, ("ids",), text_batches)
  batches = [text_batches(1, *size)[0] for size in SIZES]
  learner = harness.make_learner(accumulate_steps=WINDOW)
  run = harness.start(
    tf, network, learner, num_partitions=3, num_micro_batches=4, name="1f1b"
  )
  functions = {SIZES[0]: run.function}
  plain = Reference(tf, network)
  velocity = dict.fromkeys(plain.trainable, 0.0)
  total, weight = dict.fromkeys(plain.trainable, 0.0), 0.0
  for call, (size, batch) in enumerate(zip(SIZES, batches, strict=True)):
    if size not in functions:
      before = run.state()
      specs = harness.specs(tf, batch)
      functions[size] = run.pipeline.train_function(learner, specs)
      # Another function in the middle of a window leaves what was gathered alone.
      assert not harness.differences(run.state(), before)
    outputs = harness.call(tf, functions[size], batch)
    sums, loss, loss_weight = plain.gradients(batch, call)
    np.testing.assert_allclose(outputs["metrics"]["loss"][0], loss, rtol=1e-5)
    total = {name: total[name] + sums[name] for name in sums}
    weight += loss_weight
    closes = (call + 1) % WINDOW == 0
    assert outputs["update"]["applied"] == closes
    if closes:
      assert outputs["update"]["weight"] == weight
      move(plain, velocity, mean_gradients(plain, total, weight))
      total, weight = dict.fromkeys(plain.trainable, 0.0), 0.0
      state = run.state()
      harness.assert_close(state, plain.weights)
      assert not any(state[f"accumulators/{name}"].any() for name in plain.trainable)
  assert run.state()["learner/step"] == 3


def move(plain, velocity, gradients):
  """Takes a step of clipped momentum, as of `harness.make_learner`."""
  factor = min(1.0, harness.CLIP_NORM / global_norm(gradients))
  for name, gradient in gradients.items():
    velocity[name] = harness.MOMENTUM * velocity[name] + factor * gradient
    new = plain.weights[name] - harness.LEARNING_RATE * velocity[name]
    plain.weights[name] = new.astype(np.float32)


class Growing(SyntheticTextInput):
  """Announces batches of one length and gives others."""

  def _batches(self, start_step, steps):
    batches = super()._batches(start_step, steps)
    return batches.map(lambda b: {name: value[:, 1:] for name, value in b.items()})


def test_an_input_whose_shapes_change_is_refused_before_the_first_step(tf, tmp_path):
  run = training.make_run(training.TEXT)
  run.input = Text().Train().Set(cls=Growing).Instantiate()
  with pytest.raises(
    ValueError, match=r"^Growing announces .*\(4, 5\).* but gives .*\(4, 4\)"
  ):
    Trainer(run, tmp_path)
  assert list(tmp_path.iterdir()) == []
