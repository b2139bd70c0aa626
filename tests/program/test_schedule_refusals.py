"""What each schedule refuses: by the name and the value that the user has typed."""

import dataclasses
import re

import pytest

from tests.program import command
from tests.program.training import IMAGE
from tfpipe.model import SCHEDULES
from tfpipe.schedule import make, text

CHIMERA = {"chimera", "chimera_doubling", "chimera_halving"}
# 25 layers, 8 rows, and unless set 2 partitions and 2 micro-batches.
ARGUMENTS = (f"--model={IMAGE}", "--mode=plan", "--set=task.num_blocks=24")
# A field, a value, and the schedules that allow it.
ALLOWED = [
  ("num_partitions", 0, set()),
  ("num_partitions", 3, {*SCHEDULES} - CHIMERA),
  ("num_partitions", 26, set()),
  ("num_micro_batches", 0, set()),
  ("num_micro_batches", 1, {*SCHEDULES} - {"chimera_halving"}),
  ("stages_per_device", -1, set()),
  ("stages_per_device", 1, {"interleaved", "looped_bfs", "zb_interleaved", "zb_auto"}),
  ("stages_per_device", 3, {"interleaved", "looped_bfs", "zb_interleaved"}),
  ("stages_per_device", 13, set()),
  ("group_size", -1, set()),
  ("group_size", 3, set()),
  ("num_pairs", -1, set()),
  ("num_pairs", 3, set()),
]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("field", "value", "allowed"), ALLOWED)
def test_what_a_schedule_does_not_allow_is_refused_by_field_and_value(
  name, field, value, allowed
):
  arguments = (f"--schedule={name}", f"--set=pipeline.{field}={value}")
  if name in allowed:
    command.run(*ARGUMENTS, *arguments)
    return
  found = command.refusal(*ARGUMENTS, *arguments)
  assert re.search(rf"^error: .*pipeline\.{field}={value}\b.*: must be .", found), found
  assert found.count("\n") == 0


@pytest.mark.parametrize(
  ("name", "arguments", "message"),
  [
    (
      "chimera",
      ("--num_partitions=5",),
      r"\.num_partitions=5 with schedule chimera: must be an even number >= 2$",
    ),
    (
      "chimera_halving",
      ("--num_micro_batches=1",),
      r"\.num_micro_batches=1 with schedule chimera_halving: must be an even number",
    ),
    (
      "chimera_doubling",
      ("--num_partitions=8", "--set=pipeline.num_pairs=3"),
      r"num_pairs=3 with .*_doubling: must be 0, or one of 1, 2, 4, the divisors of ha",
    ),
    (
      "zb_v",
      ("--stages_per_device=4",),
      r"=4 with schedule zb_v: must be 0, or 2, a V",
    ),
    ("zb_auto", ("--stages_per_device=4",), r"=4 .* zb_auto: must be 0, or 1, or 2 in"),
    (
      "interleaved",
      ("--num_partitions=3", "--num_micro_batches=8", "--set=pipeline.group_size=6"),
      r"group_size=6 with schedule interleaved: must be 0, or one of 4, 5, 8 with 3 de",
    ),
    (
      "looped_bfs",
      ("--num_partitions=4", "--stages_per_device=7"),
      r"\.num_partitions=4 times pipeline\.stages_per_device=7 with .* makes 28 cells",
    ),
  ],
)
def test_the_message_says_what_is_allowed(name, arguments, message):
  found = command.refusal(*ARGUMENTS, f"--schedule={name}", *arguments)
  assert re.search(message, found), found


def test_a_folder_is_not_said_to_be_missing(tmp_path):
  for name in ("s.csv", "s.json"):
    path = tmp_path / name
    path.mkdir()
    for flag, owner in (
      ("schedule", "pipeline.schedule="),
      ("layer_times", "pipeline.layer_times: layer times "),
      ("hardware", "hardware "),
    ):
      if flag == "schedule" or name == "s.json":
        found = command.refusal(*ARGUMENTS, f"--{flag}={path}")
        assert found == f"error: {owner}'{path}': this is a folder, not a file"


def test_no_text_of_a_file_or_flag_changes_the_terminal(tmp_path, capsys):
  red = "\x1b[31mred"
  path = tmp_path / f"{red}.csv"
  path.write_text(text.to_csv(dataclasses.replace(make("1f1b", 2, 2), name=red)))
  own = (*ARGUMENTS, "--remat=none", f"--schedule={path}")
  command.run(*own)
  shown = capsys.readouterr().out
  assert "schedule \\x1b[31mred, 2 cells" in shown
  assert "\x1b" not in shown
  path.write_text(path.read_text().replace("U", "Q"))
  for arguments in (
    own[1:],
    (f"--mode={red}",),
    (f"--{red}",),
    (f"--max_steps={red}",),
  ):
    found = command.refusal(*ARGUMENTS[:1], *arguments)
    assert "\\x1b[31mred" in found
    assert "\x1b" not in found
