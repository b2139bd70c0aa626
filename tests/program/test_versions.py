"""What a run was made with."""

import subprocess
import sys
from importlib import metadata

from tfpipe.program import versions as versions_lib
from tfpipe.program.versions import NOT_INSTALLED, PACKAGES, versions


def git(folder, *arguments):
  identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
  ended = subprocess.run(
    ["git", "-C", str(folder), *identity, *arguments],
    capture_output=True,
    text=True,
    check=True,
  )
  return ended.stdout.strip()


def test_packages_python_and_machine_are_named():
  found = versions()
  for name in ("tensorflow", "numpy", "absl-py", "tensorflow-datasets"):
    assert found[name] == metadata.version(name)
  assert found["python"] == sys.version.split()[0]
  rest = {"python", "platform", "cpus", "TF_ENABLE_ONEDNN_OPTS", "commit"}
  assert set(found) == {*PACKAGES, *rest}
  assert all(found.values())
  assert found == versions()


def test_a_package_that_is_missing_is_said_to_be(monkeypatch):
  monkeypatch.setattr(versions_lib, "PACKAGES", ("no-such-package",))
  assert versions()["no-such-package"] == NOT_INSTALLED


def test_the_commit_is_that_of_the_checkout_and_tells_of_changes(tmp_path):
  assert versions_lib.commit(tmp_path) == "no git checkout"
  git(tmp_path, "init", "-q")
  (tmp_path / "file").write_text("one")
  git(tmp_path, "add", "file")
  git(tmp_path, "commit", "-q", "-m", "first")
  git(tmp_path, "tag", "v1")
  head = git(tmp_path, "rev-parse", "HEAD")
  assert versions_lib.commit(tmp_path) == head
  (tmp_path / "file").write_text("two")
  assert versions_lib.commit(tmp_path) == f"{head}-dirty"


def test_no_git_is_no_error(monkeypatch, tmp_path):
  (tmp_path / ".git").mkdir()
  monkeypatch.setenv("PATH", str(tmp_path))
  assert versions_lib.commit(tmp_path) == "unknown: git does not answer"
