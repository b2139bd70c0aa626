"""What `--mode=plan` shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tfpipe import hardware as hardware_lib
from tfpipe import knobs, plan_search, plan_text
from tfpipe import plan as plan_lib
from tfpipe.network import Network
from tfpipe.params import Params
from tfpipe.program.report import first_screen, lists, show


def show_plan(params: Params, changes: str, hardware: str | None) -> None:
  """Shows the whole plan, for the hardware that is named if any is.

  Raises:
    ValueError, TypeError, LookupError, OSError: there is no such hardware, or the run
      cannot be as planned.
  """
  found = None if hardware is None else hardware_lib.find(hardware)
  network = Network(params)
  plan = plan_lib.make(params, found, network)
  show(first_screen(params, changes, plan))
  show(plan_text.details(plan))
  for advice in knobs.advice(params, plan, network):
    show(advice)
  show(lists(plan))


def show_search(
  params: Params, hardware: str, model: str, overrides: Sequence[str]
) -> None:
  """Searches what no flag sets; what is printed runs with the other flags that do.

  Args:
    params: of the run.
    hardware: its name, or a file.
    model: name of the experiment.
    overrides: what the flags set, as `key.path=value`.

  Raises:
    ValueError, TypeError, LookupError, OSError: there is no such hardware, or nothing
      to search.
  """
  found = hardware_lib.find(hardware)
  given, command = [], [f"--model={model}"]
  for override in overrides:
    path = override.partition("=")[0].strip()
    name = path.removeprefix("pipeline.")
    if name != path and name in plan_search.SEARCHED:
      given.append(name)
    else:
      command.append(f"--set {shlex.quote(override)}")
  front = plan_search.search(params, found, given)
  show(plan_search.table(front, " ".join(command)))
