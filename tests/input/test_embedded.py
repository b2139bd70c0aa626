"""The shipped data: what it holds, and what happens when it is damaged."""

import string

import numpy as np
import pytest

from tfpipe.input import embedded


@pytest.mark.parametrize(("split", "size"), [("train", 2000), ("test", 500)])
def test_fashion_mnist_has_its_size_and_all_classes(split, size):
  images, labels = embedded.fashion_mnist(split)
  assert (images.shape, images.dtype) == ((size, 28, 28), np.uint8)
  assert (labels.shape, labels.dtype) == ((size,), np.uint8)
  # Balanced as a random draw: 5 standard deviations of a binomial with p = 1/10.
  counts = np.bincount(labels, minlength=10)
  assert len(counts) == 10
  assert np.abs(counts - size / 10).max() < 5 * np.sqrt(size * 0.1 * 0.9)


def test_fashion_mnist_keeps_the_original_order():
  # First labels of the published files: ankle boot, T-shirt, T-shirt, dress, T-shirt;
  # and ankle boot, pullover, trouser, trouser, shirt.
  assert embedded.fashion_mnist("train")[1][:5].tolist() == [9, 0, 0, 3, 0]
  assert embedded.fashion_mnist("test")[1][:5].tolist() == [9, 2, 1, 1, 6]


def test_no_shipped_image_is_in_both_splits():
  seen = {image.tobytes() for image in embedded.fashion_mnist("train")[0]}
  assert not any(im.tobytes() in seen for im in embedded.fashion_mnist("test")[0])


def test_plays_are_whole_and_in_printable_ascii():
  train, test = embedded.shakespeare("train"), embedded.shakespeare("test")
  assert sorted(train) == ["as_you_like_it", "othello"]
  assert list(test) == ["macbeth"]
  text = test["macbeth"]
  assert text.startswith("MACBETH\n")
  assert "Tomorrow, and tomorrow, and tomorrow" in text.replace("To-m", "Tom").replace(
    "to-m", "tom"
  )
  allowed = set(string.printable) - set("\t\r\x0b\x0c")
  for play in (*train.values(), text):
    assert set(play) <= allowed
    assert "gutenberg" not in play.lower()
    assert len(play) > 100_000


def test_no_line_of_length_of_the_test_play_is_in_the_training_plays():
  lines = {
    line for play in embedded.shakespeare("train").values() for line in play.split("\n")
  }
  held_out = embedded.shakespeare("test")["macbeth"].split("\n")
  assert not [line for line in held_out if len(line) > 30 and line in lines]


def test_a_missing_file_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(embedded, "DATA_DIR", tmp_path)
  with pytest.raises(
    LookupError, match=r"fashion_mnist.npz is missing; install tfpipe"
  ):
    embedded.fashion_mnist("train")


def test_a_damaged_file_is_named_with_both_checksums(tmp_path, monkeypatch):
  damaged = bytearray((embedded.DATA_DIR / "macbeth.txt.gz").read_bytes())
  damaged[1000] ^= 1
  (tmp_path / "macbeth.txt.gz").write_bytes(damaged)
  monkeypatch.setattr(embedded, "DATA_DIR", tmp_path)
  expected = embedded.SHA256["macbeth.txt.gz"]
  with pytest.raises(
    ValueError, match=rf"macbeth.txt.gz .*{expected} and is [0-9a-f]+"
  ):
    embedded.shakespeare("test")
