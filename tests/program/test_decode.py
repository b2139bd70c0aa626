"""Text continued by a language model: what is drawn, and from which logits."""

import math
import types

import numpy as np
import pytest

from tests.program import command, training
from tests.program.training import CHAR, TINY_CHAR
from tfpipe.input.text_input import CharTextInput, encode
from tfpipe.input.text_input import decode as decode_ids
from tfpipe.program import decode as decode_lib
from tfpipe.program import export
from tfpipe.program.decode import Options, draw

LOGITS = np.array([0.5, 2.0, -1.0, 1.5, 2.0], np.float32)


def draws(number=4000, **options):
  chosen = [draw(LOGITS, Options(**options), place) for place in range(number)]
  return np.bincount(chosen, minlength=len(LOGITS)) / number


def test_without_temperature_the_most_probable_token_is_taken_the_first_of_equal_ones():
  assert draws(10, temperature=0.0).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(temperature):
  weights = np.exp(LOGITS / temperature)
  expected = weights / weights.sum()
  deviation = np.sqrt(expected * (1 - expected) / 4000)
  assert (np.abs(draws(temperature=temperature) - expected) < 5 * deviation).all()


def test_of_the_most_probable_tokens_alone_is_drawn_if_asked_to():
  found = draws(top_k=3)
  assert found[[0, 2]].tolist() == [0, 0]
  weights = np.exp(LOGITS[[1, 3, 4]])
  np.testing.assert_allclose(found[[1, 3, 4]], weights / weights.sum(), atol=0.05)
  assert draws(10, top_k=1).tolist() == [0, 1, 0, 0, 0]
  assert draws(10, top_k=99).tolist() == draws(10).tolist()


def test_what_is_drawn_depends_on_the_seed_and_the_place_alone():
  def chosen(seed):
    return [draw(LOGITS, Options(seed=seed), place) for place in range(50)]

  assert chosen(1) == chosen(1)
  assert chosen(1) != chosen(2)
  assert len(set(chosen(1))) > 1


@pytest.fixture(scope="module")
def folder(tf, tmp_path_factory):
  """Gives the folder of a trained run."""
  path = tmp_path_factory.mktemp("char")
  training.train(path, CHAR, *TINY_CHAR, "train.max_steps=30")
  return path


def decoded(capsys, folder, *arguments):
  where = (f"--model={CHAR}", "--mode=decode", f"--logdir={folder}")
  capsys.readouterr()
  command.run(*where, *[f"--set={change}" for change in TINY_CHAR], *arguments)
  shown = capsys.readouterr().out
  before, _, text = shown.partition(f"restored step 30 from {folder}\n")
  assert before
  return text.removesuffix("\n")


def test_the_same_seed_continues_a_prompt_by_the_same_text(folder, capsys):
  before = sorted(folder.iterdir())
  arguments = ("--prompt=Enter MACBETH", "--num_tokens=20")
  text = decoded(capsys, folder, *arguments)
  assert text.startswith("Enter MACBETH")
  assert len(text) <= len("Enter MACBETH") + 20
  assert decoded(capsys, folder, *arguments) == text
  assert decoded(capsys, folder, *arguments, "--decode_seed=1") != text
  cut = decoded(capsys, folder, *arguments, "--set=pipeline.num_partitions=3")
  assert cut.endswith("+ pipeline.num_partitions : 3\n" + text)
  assert sorted(folder.iterdir()) == before


def test_the_most_probable_text_is_that_of_the_logits_of_evaluation(folder, capsys):
  text = decoded(capsys, folder, "--prompt=ab", "--num_tokens=9", "--temperature=0")
  run = training.make_run(CHAR, *TINY_CHAR)
  training.restore_newest(run, folder)
  function = run.eval_function()
  ids = [0, *encode(text, "text")]
  # Evaluation does not show its logits: the next character is the one of which it says
  # that it is right. Windows are of 8 ids, the last of which count.
  for end in range(3, len(ids)):
    window = ids[max(0, end - 8) : end]
    place = len(window) - 1
    window += [0] * (8 - len(window))
    rows = np.tile(np.array(window, np.int32), (4, 1))
    labels = np.zeros([4, 8], np.int32)
    labels[:, place] = ids[end]
    weights = np.zeros([4, 8], np.float32)
    weights[:, place] = 1
    hits, total = function({"ids": rows, "labels": labels, "weights": weights})[
      "accuracy"
    ]
    assert (float(hits), float(total)) == (4, 4)


def test_a_text_ends_where_the_network_ends_it(monkeypatch):
  ids_left = iter([3, 5, 0, 4])

  class Logits:
    def __init__(self, *arguments):
      pass

    def check_causal(self, ids):
      assert ids == [0, *encode("ab", "prompt")]

    def __call__(self, ids):
      return np.eye(97, dtype=np.float32)[next(ids_left)]

  network = types.SimpleNamespace(fields=["ids"])
  source = CharTextInput(CharTextInput.Params().Set(batch_size=1, seq_len=8))
  monkeypatch.setattr(decode_lib, "_NextLogits", Logits)
  monkeypatch.setattr(export, "predictor", lambda run, rows: (network, {}))
  monkeypatch.setattr(export, "source_of", lambda run: source)
  run = types.SimpleNamespace()
  found = decode_lib._decode(run, Options("ab", 10, temperature=0.0))  # pyright: ignore[reportArgumentType]
  assert found == "ab" + decode_ids([3, 5])


def test_a_network_of_several_texts_in_a_row_is_given_one(tf):
  class Network:
    fields = ("ids", "segment_ids", "positions")

    def predict(self, batch):
      assert batch.keys() == set(self.fields)
      assert [values.dtype for values in batch.values()] == [tf.int32] * 3
      rows = tf.cast(tf.stack(list(batch.values()), axis=-1), tf.float32)
      return {"logits": rows}

  logits = decode_lib._NextLogits(Network(), 4)  # pyright: ignore[reportArgumentType]
  assert logits([0, 7]).tolist() == [7, 1, 1]
  # Of more ids than a row has the last ones count.
  assert logits([0, 7, 8, 9, 5]).tolist() == [5, 1, 3]


def test_a_network_that_reads_what_no_text_gives_is_refused(monkeypatch):
  network = types.SimpleNamespace(fields=["ids", "speaker"])
  source = CharTextInput(CharTextInput.Params().Set(batch_size=1, seq_len=8))
  monkeypatch.setattr(export, "predictor", lambda run, rows: (network, {}))
  monkeypatch.setattr(export, "source_of", lambda run: source)
  with pytest.raises(
    ValueError, match="the network reads ids, speaker; must be ids, a"
  ):
    decode_lib._decode(types.SimpleNamespace(), Options())  # pyright: ignore[reportArgumentType]


def test_a_network_that_sees_later_ids_is_refused(tf):
  class Network:
    fields = ("ids",)

    def predict(self, batch):
      ids = tf.cast(batch["ids"], tf.float32)
      return {"logits": tf.cumsum(ids, axis=1, reverse=True)[..., None] * tf.ones([97])}

  logits = decode_lib._NextLogits(Network(), 8)  # pyright: ignore[reportArgumentType]
  with pytest.raises(ValueError, match=r"predictions depend on later ids"):
    logits.check_causal([0, 4])
  logits.check_causal([0] * 8)


def test_the_random_numbers_are_finite_at_any_temperature():
  for temperature in (1e-30, 1e30):
    assert math.isfinite(draw(LOGITS, Options(temperature=temperature), 0))
