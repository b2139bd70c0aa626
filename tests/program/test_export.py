"""A SavedModel: what evaluation computes, for any rows, without tfpipe."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.program import command, reference, training
from tests.program.training import IMAGE, TEXT
from tfpipe.input.text_input import SyntheticTextInput
from tfpipe.layers.base import Layer
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.program import export as export_lib
from tfpipe.program.train import restore_newest

# Written with TensorFlow alone, as whoever serves the model does.
SERVE = """
import json, sys
import tensorflow as tf
found = {}
for path in sys.argv[1:]:
  serve = tf.saved_model.load(path).signatures["serving_default"]
  ((name, spec),) = serve.structured_input_signature[1].items()
  size = int(tf.reduce_prod(spec.shape[1:]))
  def feed(rows):
    values = tf.range(rows * size) % 7
    return tf.cast(tf.reshape(values, [rows, *spec.shape[1:]]), spec.dtype)
  graph = serve.graph.as_graph_def()
  functions = [node for f in graph.library.function for node in f.node_def]
  found[path] = {
    "input": name,
    "outputs": {n: t.shape.as_list() for n, t in serve.structured_outputs.items()},
    "rows": [len(serve(**{name: feed(n)})["logits"]) for n in (0, 1, 5)],
    "logits": serve(**{name: feed(5)})["logits"].numpy().tolist(),
    "devices": sorted({node.device for node in [*graph.node, *functions]}),
  }
assert not [name for name in sys.modules if name.split(".")[0] == "tfpipe"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def exported(tf, tmp_path_factory):
  """Gives the folders of two trained runs, each with its SavedModel."""
  folders = {}
  for name in (IMAGE, TEXT):
    folders[name] = tmp_path_factory.mktemp("exported")
    training.train(folders[name], name)
    command.run(f"--model={name}", f"--logdir={folders[name]}", "--mode=export")
  return folders


@pytest.fixture(scope="module")
def served(exported, tmp_path_factory):
  paths = [str(exported[IMAGE] / "export/6"), str(exported[TEXT] / "export/4")]
  ended = subprocess.run(
    [sys.executable, "-c", SERVE, *paths],
    capture_output=True,
    text=True,
    cwd=tmp_path_factory.mktemp("elsewhere"),
    check=False,
  )
  assert ended.returncode == 0, ended.stderr
  found = json.loads(ended.stdout.splitlines()[-1])
  return dict(zip((IMAGE, TEXT), found.values(), strict=True))


def test_any_number_of_examples_is_served_by_tensorflow_alone(served):
  image, text = served[IMAGE], served[TEXT]
  assert image["input"] == "image"
  assert image["outputs"] == {"logits": [None, 7], "probabilities": [None, 7]}
  assert text["input"] == "ids"
  assert text["outputs"] == {"logits": [None, 5, 11]}
  assert image["rows"] == text["rows"] == [0, 1, 5]


def test_no_device_is_named_in_what_is_exported(served):
  assert served[IMAGE]["devices"] == served[TEXT]["devices"] == [""]


def test_the_averages_of_the_weights_are_exported_where_there_are_any(exported, served):
  arrays = training.newest(exported[IMAGE]).arrays
  weights = reference.weights_of(arrays) | reference.weights_of(arrays, "ema/")
  images = (np.arange(5 * 9) % 7).reshape(5, 9).astype(np.float64)
  expected = logits(weights, images)
  np.testing.assert_allclose(served[IMAGE]["logits"], expected, rtol=1e-4, atol=1e-5)


def logits(weights, x):
  """The blocks of `tiny.Classifier` in evaluation, with moving statistics."""
  for i in range(4):
    own = {
      name: np.asarray(weights[f"block_{i}/{name}"], np.float64)
      for name in ("w", "b", "moving_mean", "moving_variance")
    }
    y = x @ own["w"] + own["b"]
    x = np.tanh((y - own["moving_mean"]) / np.sqrt(own["moving_variance"] + 1e-3))
  return x


@pytest.mark.parametrize("cut", [("1", "1"), ("3", "4")])
def test_the_result_depends_on_no_cut(exported, served, tf, tmp_path, cut):
  number, micro_batches = cut
  run = training.make_run(
    IMAGE,
    f"pipeline.num_partitions={number}",
    f"pipeline.num_micro_batches={micro_batches}",
  )
  restore_newest(run, exported[IMAGE])
  export_lib.export(run, tmp_path)
  loaded = tf.saved_model.load(str(tmp_path / "export/6"))
  images = tf.reshape(tf.cast(tf.range(45) % 7, tf.float32), [5, 3, 3, 1])
  found = loaded.signatures["serving_default"](image=images)["logits"]
  np.testing.assert_allclose(found, served[IMAGE]["logits"], rtol=1e-5, atol=1e-6)


def test_only_weights_that_are_served_are_in_the_file(exported, tf):
  reader = tf.train.load_checkpoint(
    str(exported[IMAGE] / "export/6/variables/variables")
  )
  names = [n for n in reader.get_variable_to_shape_map() if n.startswith("weights/")]
  assert len(names) == 16


def test_what_is_exported_is_said_and_left_alone_afterwards(exported, capsys):
  folder = exported[IMAGE]
  before = sorted(path.name for path in (folder / "export").iterdir())
  assert before == ["6"]
  found = command.refusal(f"--model={IMAGE}", f"--logdir={folder}", "--mode=export")
  path = folder / "export/6"
  assert found == f"error: {path} is there already; remove it to export step 6"
  assert sorted(p.name for p in (folder / "export").iterdir()) == before


def test_the_first_lines_say_what_goes_in_and_out_and_how_it_was_checked(
  exported, tmp_path
):
  run = training.make_run(TEXT)
  restore_newest(run, exported[TEXT])
  first, second = export_lib.export(run, tmp_path)
  assert first == (
    f"exported {tmp_path}/export/4: ids int32 [n, 5] -> logits float32 [n, 5, 11]"
  )
  assert second.startswith("checked on 4 examples: loss ")


def test_an_experiment_without_test_is_checked_on_its_training_input(tf, tmp_path):
  run = training.make_run("tests.program.tiny.NoTest")
  assert len(export_lib.export(run, tmp_path)) == 2
  assert [path.name for path in (tmp_path / "export").iterdir()] == ["0"]


class Uneven(SyntheticTextInput):
  """Announces rows of five ids, and gives shorter ones first, or alone."""

  def dataset(self, start_step=0):
    whole = super().dataset(start_step)
    short = whole.map(lambda b: {name: v[:, :3] for name, v in b.items()})
    return short.take(1).concatenate(whole) if self.params.seed else short


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_exported_is_checked_on_a_batch_of_its_shape(tf, tmp_path, seed):
  run = training.make_run(TEXT)
  params = run.params.eval_input.Copy().Set(cls=Uneven, seed=seed)
  run.eval_input = params.Instantiate()
  if seed:
    assert "ids int32 [n, 5]" in export_lib.export(run, tmp_path)[0]
    return
  with pytest.raises(
    ValueError, match=r"Uneven gives no batch of .*\(4, 5\).*to check"
  ):
    export_lib.export(run, tmp_path)
  assert not list(tmp_path.iterdir())


class WrongLoss(ClassifierLoss):
  """Predicts one class only."""

  def Predict(self, theta, *inputs):
    return super().Predict(theta, *inputs).Transform(lambda x: x[:1])


class NoPrediction(ClassifierLoss):
  """A loss that is only trained."""

  Predict = Layer.Predict


@pytest.mark.parametrize(
  ("loss", "message"),
  [
    (
      WrongLoss,
      r"WrongLoss\.Predict of layer 'loss' gives 'logits' of shape \(1, 7\) for 4 exam",
    ),
    (
      NoPrediction,
      r"the last layer, 'loss', says .*: NoPrediction must define Predict\(self",
    ),
  ],
)
def test_a_last_layer_that_predicts_nothing_for_an_example_is_refused(
  tf, tmp_path, loss, message
):
  run = training.make_run(IMAGE)
  run.params.task.loss = loss.Params()
  with pytest.raises(ValueError, match=message):
    export_lib.export(run, tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_network_that_is_not_what_evaluation_computes_is_not_exported(
  tf, tmp_path, monkeypatch
):
  run = training.make_run(IMAGE)
  monkeypatch.setattr(run, "averages", dict)
  other = training.make_run(IMAGE, "train.seed=5")
  weights = dict(other.pipeline.weights)
  make = export_lib.predictor

  def wrong(run):
    network, copies = make(run)
    copies["block_1/w"].assign(weights["block_1/w"] + 1.0)
    return network, copies

  monkeypatch.setattr(export_lib, "predictor", wrong)
  with pytest.raises(ValueError, match=r"to be exported gives \w+=\[.*evaluation \["):
    export_lib.export(run, tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_file_that_gives_something_else_is_not_left_behind(tf, tmp_path, monkeypatch):
  run = training.make_run(IMAGE)
  write = export_lib._write

  def damaged(serve, weights, path):
    weights["block_1/w"].assign_add(tf.ones([6, 6]))
    write(serve, weights, path)
    weights["block_1/w"].assign_sub(tf.ones([6, 6]))

  monkeypatch.setattr(export_lib, "_write", damaged)
  with pytest.raises(
    ValueError, match=r"0\.partial: logits of the saved file is not what"
  ):
    export_lib.export(run, tmp_path)
  assert not list((tmp_path / "export").iterdir())


def test_a_file_left_half_written_is_replaced(tf, tmp_path):
  half = pathlib.Path(tmp_path / "export/0.partial/variables")
  half.mkdir(parents=True)
  (half / "variables.index").write_text("")
  export_lib.export(training.make_run(IMAGE), tmp_path)
  assert [path.name for path in (tmp_path / "export").iterdir()] == ["0"]


def test_a_model_that_cannot_be_written_is_one_line(tf, tmp_path):
  run = training.make_run(IMAGE)
  (tmp_path / "export").write_text("")
  message = f"^{tmp_path}/export/0.partial could not be written: [^\n]*$"
  with pytest.raises(ValueError, match=message):
    export_lib.export(run, tmp_path)
