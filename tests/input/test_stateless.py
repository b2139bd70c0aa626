"""No input remembers anything: not a random number, not a place."""

import pytest

from tests.input.test_tfds_input import data_dir, make  # noqa: F401 (a fixture)
from tfpipe.input.bucketed_input import BucketedTextInput
from tfpipe.input.document_input import PackedTextInput
from tfpipe.input.image_input import (
  AugmentedImageInput,
  EmbeddedImageInput,
  SyntheticImageInput,
)
from tfpipe.input.text_input import CharTextInput, SyntheticTextInput

# All that is random, but for what replaces other steps.
AUGMENTED = {
  "random_crop_padding": 2,
  "random_flip": True,
  "color_jitter": True,
  "cutout": 4,
}
CROPPED = {**AUGMENTED, "random_resized_crop": True}
IMAGES = [
  EmbeddedImageInput.Params().Set(channels=3, **AUGMENTED),
  EmbeddedImageInput.Params().Set(channels=3, **CROPPED),
  SyntheticImageInput.Params(),
]
TEXTS = [
  CharTextInput.Params(),
  SyntheticTextInput.Params(),
  PackedTextInput.Params(),
  BucketedTextInput.Params().Set(bucket_lengths=(32,)),
]


def stateful_ops(tf, source):
  """Lists the ops of an input's dataset that TensorFlow says have a state."""
  from tensorflow.python.framework import op_def_registry

  traced = tf.function(lambda: tf.data.experimental.to_variant(source.dataset(3)))
  graph_def = traced.get_concrete_function().graph.as_graph_def()
  functions = graph_def.library.function
  nodes = [*graph_def.node, *(node for f in functions for node in f.node_def)]
  ops = {node.op for node in nodes}
  assert len(ops) > 5
  return {op for op in ops if op_def_registry.get(op).is_stateful}


def test_the_list_of_what_is_random_is_whole():
  assert set(CROPPED) == set(AugmentedImageInput.TRAINING_ONLY)


@pytest.mark.parametrize("params", [*IMAGES, *TEXTS], ids=lambda p: p.cls.__name__)
def test_no_op_of_a_batch_has_a_state(tf, params):
  ops = stateful_ops(tf, params.Copy().Set(batch_size=4).Instantiate())
  assert not {op for op in ops if not op.endswith("Dataset")}


def test_no_op_of_a_stored_image_has_a_state(tf, data_dir):  # noqa: F811
  ops = stateful_ops(tf, make(data_dir, **CROPPED))
  assert not {op for op in ops if "Dataset" not in op}


def test_a_state_would_be_found(tf):
  class Forgetful(SyntheticImageInput):
    def _batches(self, start_step, steps):
      batches = super()._batches(start_step, steps)
      noise = {"shape": [], "seed": 1}
      return batches.map(
        lambda b: {**b, "image": b["image"] + tf.random.normal(**noise)}
      )

  params = SyntheticImageInput.Params().Set(cls=Forgetful, batch_size=4)
  assert "RandomStandardNormal" in stateful_ops(tf, params.Instantiate())
