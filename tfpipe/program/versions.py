"""What a run was made with: versions of all that its numbers may depend on."""

from __future__ import annotations

import os
import pathlib
import platform
import subprocess
from importlib import metadata

PACKAGES = (
  "tfpipe",
  "tensorflow",
  "tensorflow-datasets",
  "keras",
  "numpy",
  "protobuf",
  "absl-py",
)
NOT_INSTALLED = "not installed"
_ROOT = pathlib.Path(__file__).parents[2]


def versions() -> dict[str, str]:
  """Gives the version of each part, by name; equal for equal installations.

  Besides the packages: Python, the platform, the number of CPUs (sums of parallel
  operations depend on it), whether oneDNN is set by the environment, and the commit of
  tfpipe, with `-dirty` if files differ from it, where it runs from a git checkout.
  TensorFlow is not imported.
  """
  found = {name: _package(name) for name in PACKAGES}
  found["python"] = platform.python_version()
  found["platform"] = platform.platform()
  found["cpus"] = str(os.cpu_count())
  found["TF_ENABLE_ONEDNN_OPTS"] = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "not set")
  found["commit"] = commit(_ROOT)
  return found


def commit(folder: pathlib.Path) -> str:
  """Names the git commit of a folder that is the top of a checkout, else says so."""
  if not (folder / ".git").exists():
    return "no git checkout"
  command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
  try:
    ended = subprocess.run(
      [*command, "--exclude=*"], capture_output=True, text=True, check=False, timeout=10
    )
  except (OSError, subprocess.TimeoutExpired):
    return "unknown: git does not answer"
  return ended.stdout.strip() or "unknown: git does not answer"


def _package(name: str) -> str:
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return NOT_INSTALLED
