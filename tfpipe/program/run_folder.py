"""The files by which the folder of a run explains itself."""

from __future__ import annotations

import pathlib

from tfpipe import layer_table, plan_text, registry
from tfpipe import plan as plan_lib
from tfpipe.params import Params
from tfpipe.plan import Plan
from tfpipe.program import report
from tfpipe.program.versions import versions
from tfpipe.schedule import text


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


def _plan(params: Params, changes: str, plan: Plan) -> str:
  parts = [
    report.first_screen(params, changes, plan),
    plan_text.details(plan),
    plan_lib.align(layer_table.rows(plan)),
    report.lists(plan),
  ]
  return "\n\n".join(parts) + "\n"
