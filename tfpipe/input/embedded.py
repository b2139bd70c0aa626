"""The small data sets that come with the package, so that a first run needs no fetch.

`tools/prepare_data.py --dataset=shipped` made these files; `LICENSES/` has their terms.
Each is checked against its SHA-256 when it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path

import numpy as np

DATA_DIR = Path(__file__).parent / "data"
SPLITS = ("train", "test")
FASHION_MNIST = "fashion_mnist.npz"
FASHION_MNIST_SIZES = {"train": 2000, "test": 500}
FASHION_MNIST_SIDE = 28
FASHION_MNIST_CLASSES = 10
# Train on a tragedy and a comedy, test on a play that was held out whole; the three
# write the speakers' names alike.
PLAYS = {"train": ("as_you_like_it", "othello"), "test": ("macbeth",)}
SHA256 = {
  FASHION_MNIST: "86860c1e255c1b51da8ba6f627ed749c51e25018ffd813e5e92f32f74cc1e168",
  "as_you_like_it.txt.gz": (
    "7706397d11872da00f9653797ea793828b5b083fc724825553e16caa9babca6a"
  ),
  "othello.txt.gz": (
    "2d6aad11a79ccc4354ef1a7d531ff1ecb67277fd4d5035eb89507a86721b1a96"
  ),
  "macbeth.txt.gz": (
    "8e6ae9e100d5bf33c03c25f511b0ab92e14260ba57cb0293a24aa2f9deec74f1"
  ),
}


def fashion_mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
  """Gives the first 2,000 training or 500 test examples of Fashion-MNIST.

  Fashion-MNIST: Xiao, Rasul and Vollgraf, arXiv:1708.07747.

  Args:
    split: 'train' or 'test'.

  Returns:
    uint8 images [n, 28, 28] and uint8 labels [n] in [0, 10).

  Raises:
    LookupError: if the file is missing.
    ValueError: if it is broken.
  """
  with np.load(io.BytesIO(_shipped(FASHION_MNIST))) as arrays:
    return arrays[f"{split}_images"], arrays[f"{split}_labels"]


def shakespeare(split: str) -> dict[str, str]:
  """Gives plays by Shakespeare in printable ASCII and newlines.

  Args:
    split: 'train' (As You Like It, Othello) or 'test' (Macbeth).

  Returns:
    The text of each play, by the name of its file without the endings.

  Raises:
    LookupError: if a file is missing.
    ValueError: if one is broken.
  """
  return {
    play: gzip.decompress(_shipped(f"{play}.txt.gz")).decode("ascii")
    for play in PLAYS[split]
  }


def read_verified(path: Path, sha256: str, remedy: str) -> bytes:
  """Reads a file whose SHA-256 is known.

  Args:
    path: the file.
    sha256: what its SHA-256 must be, in hexadecimal.
    remedy: what the error tells the reader to do.

  Raises:
    LookupError: if it is missing.
    ValueError: if it is not that file.
  """
  if not path.is_file():
    raise LookupError(f"{path} is missing; {remedy}")
  content = path.read_bytes()
  found = hashlib.sha256(content).hexdigest()
  if found != sha256:
    raise ValueError(
      f"{path} is not the right file: its SHA-256 should be {sha256} and is {found}; "
      f"{remedy}"
    )
  return content


def _shipped(name: str) -> bytes:
  return read_verified(DATA_DIR / name, SHA256[name], "install tfpipe again")
