"""The files by which the folder of a run explains itself."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

from tfpipe import layer_table, plan_text, registry, text_files
from tfpipe import plan as plan_lib
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program import checkpoint, report
from tfpipe.program.versions import versions
from tfpipe.schedule import text

_ENDED = "ended.txt"
_FILES = (
  *("params.txt", "changes.txt", "plan.txt", "schedule.csv", "versions.txt", _ENDED),
  *("metrics.jsonl", "report.html", checkpoint.BEST, checkpoint.PARTIAL),
  *("comparison.json", "timeline.json", "trace.json"),
)
_FOLDERS = ("train", "eval", "export")


def write(folder: pathlib.Path, params: Params, plan: Plan) -> None:
  """Writes what is known before the first step; it replaces that of an earlier start.

  `params.txt` has all Params, `changes.txt` how they differ from the experiment's
  (empty if they do not), `plan.txt` the cut, the layers and the predictions,
  `schedule.csv` all actions (as `--schedule` reads them), `versions.txt` what it all
  runs on.

  Args:
    folder: is there.
    params: of the run.
    plan: made of them.

  Raises:
    OSError: a file cannot be written.
  """
  own = params.ToText()
  usual = registry.Get(params.name)().Model().ToText()
  changes = report.differences(usual, own)
  for name, content in (
    ("params.txt", own),
    ("changes.txt", changes + "\n" if changes else ""),
    ("plan.txt", _plan(params, changes, plan)),
    ("schedule.csv", text.to_csv(plan.schedule)),
    ("versions.txt", "".join(f"{n} : {v}\n" for n, v in versions().items())),
  ):
    (folder / name).write_text(content)


def check(folder: pathlib.Path) -> None:
  """Refuses what lies where a run will write; nothing is touched.

  Raises:
    ValueError: naming it.
  """
  for path in [folder / name for name in _FILES] + checkpoint.paths(folder):
    if path.exists() and (other := text_files.kind(path)):
      raise ValueError(f"{path}: this is {other} where a file must be; move it away")
  for name in _FOLDERS:
    path = folder / name
    if path.exists() and not path.is_dir():
      raise ValueError(f"{path}: this is a file where a folder must be; move it away")


def begin(folder: pathlib.Path) -> None:
  """Takes back that the training in a folder has ended."""
  (folder / _ENDED).unlink(missing_ok=True)


def end(folder: pathlib.Path, why: str) -> None:
  """Records that the training has ended before its last step, and will not go on."""
  (folder / _ENDED).write_text(f"{why}\n", encoding="utf-8")


class Ended(NamedTuple):
  """An end of a training before its last step.

  Attributes:
    why: it has ended; empty if it has not.
    time_ns: when, since 1970: each end is another one.
  """

  why: str
  time_ns: int


def ended(folder: pathlib.Path) -> Ended:
  """Gives how the training in a folder has ended before its last step."""
  path = folder / _ENDED
  try:
    # A damaged one still says that it has ended.
    why = path.read_text(encoding="utf-8", errors="replace").strip()
    return Ended(why, path.stat().st_mtime_ns)
  except FileNotFoundError:
    return Ended("", 0)


def _plan(params: Params, changes: str, plan: Plan) -> str:
  parts = [
    report.first_screen(params, changes, plan),
    plan_text.details(plan),
    plan_lib.align(layer_table.rows(plan)),
    report.lists(plan),
  ]
  return "\n\n".join(parts) + "\n"
