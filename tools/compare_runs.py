"""Compares runs: where their Params differ, what they reached, curves over each other.

  python -m tools.compare_runs logs/a logs/b --page=compare.html

Read are `params.txt` and `metrics.jsonl` of each folder. Printed are two tables, a
column for each run; the page has them too, and a drawing of each quantity.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from absl import app, flags

from tfpipe import error_text, params_text, text_files
from tfpipe.plan import align
from tfpipe.program import page, streams
from tfpipe.program.metrics_file import Curves, MetricsFile
from tfpipe.program.page import PageData, Table

_PAGE = flags.DEFINE_string("page", "compare.html", "Where the page is written.")

# What a run without such an entry has in a table.
NONE = "-"


class LoggedRun(NamedTuple):
  """What the folder of a run tells of it.

  Attributes:
    name: how it is called here.
    params: key → value, as text.
    curves: of its metrics.
  """

  name: str
  params: dict[str, str]
  curves: Curves


def read(folders: Sequence[str]) -> list[LoggedRun]:
  """Reads runs; they are called by the ends of their paths that tell them apart.

  Raises:
    ValueError: fewer than two, one twice, a folder that holds no run, or a damaged
      file.
  """
  if len(folders) < 2:
    raise ValueError(f"{len(folders)} folders are given; it takes two to compare")
  paths = [text_files.home(folder, folder).resolve() for folder in folders]
  for path in paths:
    if paths.count(path) > 1:
      raise ValueError(f"{path} is given twice")
    for name in ("params.txt", "metrics.jsonl"):
      if not (path / name).is_file():
        raise ValueError(f"{path} is not the folder of a run: it has no {name}")
  return [
    LoggedRun(name, _params(path), _curves(path))
    for name, path in zip(_names(paths), paths, strict=True)
  ]


def differences(runs: Sequence[LoggedRun]) -> Table:
  """Lists the Params that are not the same in all runs."""
  keys = sorted({key for run in runs for key in run.params})
  rows = [[key, *(run.params.get(key, NONE) for run in runs)] for key in keys]
  differing = [row for row in rows if len(set(row[1:])) > 1]
  return Table(["Params", *(run.name for run in runs)], differing)


def results(runs: Sequence[LoggedRun]) -> Table:
  """Lists the last step and value of each quantity, in training and in evaluation."""
  kinds = ("eval", "train", "profile")
  names = dict.fromkeys(name for run in runs for name in run.curves)
  lasts = [_lasts(run.curves) for run in runs]
  rows = [
    [f"{kind} {name}", *(last.get((kind, name), NONE) for last in lasts)]
    for kind in kinds
    for name in ("step", *names)
  ]
  shown = [row for row in rows if set(row[1:]) != {NONE}]
  return Table(["last", *(run.name for run in runs)], shown)


def curves(runs: Sequence[LoggedRun]) -> dict[str, dict[str, list[tuple[int, float]]]]:
  """Gives the curves of all runs, by quantity; evaluation and training apart."""
  found: dict[str, dict[str, list[tuple[int, float]]]] = {}
  for kind in ("train", "eval"):
    for run in runs:
      for name, by_kind in run.curves.items():
        if kind in by_kind:
          found.setdefault(f"{kind} {name}", {})[run.name] = by_kind[kind]
  return found


def render(runs: Sequence[LoggedRun]) -> str:
  """Returns the page as HTML text."""
  drawn = curves(runs)
  return page.render(
    PageData(
      title=", ".join(run.name for run in runs),
      params=differences(runs),
      results=results(runs),
      losses=drawn.pop("train loss", {}),
      metrics=drawn,
    )
  )


def _params(folder: pathlib.Path) -> dict[str, str]:
  path = folder / "params.txt"
  try:
    return params_text.read(text_files.read(path))
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _curves(folder: pathlib.Path) -> Curves:
  file = MetricsFile(folder)
  file.check()
  return file.curves()


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
  """Takes as much of the ends of paths as it needs to tell them apart."""
  most = max(len(path.parts) for path in paths)
  for length in range(1, most + 1):
    names = ["/".join(path.parts[-length:]) for path in paths]
    if len(set(names)) == len(names):
      return names
  return [str(path) for path in paths]


def _lasts(curves: Curves) -> dict[tuple[str, str], str]:
  """Gives the last value by kind and quantity, and the last step of each kind."""
  found: dict[tuple[str, str], str] = {}
  steps: dict[str, int] = {}
  for name, by_kind in curves.items():
    for kind, points in by_kind.items():
      step, value = points[-1]
      found[kind, name] = f"{value:.5g}"
      steps[kind] = max(steps.get(kind, 0), step)
  return found | {(kind, "step"): str(step) for kind, step in steps.items()}


def _text(table: Table) -> str:
  return align([table.columns, *table.rows])


def main(argv: Sequence[str]) -> None:
  """Prints the tables and writes the page."""
  try:
    runs = read(argv[1:])
    for table, same in (
      (differences(runs), "All Params are the same."),
      (results(runs), "Nothing has been logged."),
    ):
      print(_text(table) if table.rows else same, end="\n\n")
    path = text_files.home(_PAGE.value, f"--page={_PAGE.value}")
    path.write_text(render(runs))
  except (ValueError, OSError) as error:
    sys.exit(f"error: {error_text.of(error)}")
  print(f"wrote {path}")


if __name__ == "__main__":
  streams.outlive_readers()
  app.run(main)
