"""Which module may import which, so that each can be read and tested by itself."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("tfpipe", "models", "params")
LONGEST_FILE = 400

# Parts without TensorFlow. `schedule` stands for the whole package.
BASE = {
  "backend",
  "cloud_tpu",
  "cost",
  "draft",
  "error_text",
  "experiment",
  "hardware",
  "knobs",
  "layer_table",
  "layer_times",
  "memory",
  "memory_bound",
  "memory_walk",
  "model",
  "nested_map",
  "network",
  "params",
  "params_copy",
  "params_text",
  "params_tree",
  "partition",
  "plan",
  "plan_search",
  "plan_settings",
  "plan_text",
  "registry",
  "saving",
  "schedule",
  "schedule_search",
  "simulate",
  "spelling",
  "text_files",
  "tied_weights",
  "timeline",
  "timeline_compare",
  "timeline_files",
  "units",
  "value_text",
}
# What each part may import besides itself.
MAY_IMPORT = {
  "checks": {"params", "spelling"},
  "input": {
    *("checks", "cost", "lazy", "nested_map", "params", "spelling", "text_files"),
  },
  "layers": {"checks", "cost", "lazy", "nested_map", "params", "spelling"},
  "lazy": set(),
  "optimizers": {"checks", "lazy", "packed", "params", "spelling", "traced"},
  "pipeline": {*BASE, "layers", "lazy", "optimizers", "packed", "structure", "traced"},
  "program": {
    *(*BASE, "input", "lazy", "optimizers", "pipeline", "spmd", "structure", "task"),
  },
  "spmd": {
    *("layers", "lazy", "optimizers", "pipeline", "schedule"),
    *("structure", "traced"),
  },
  "structure": {"lazy"},
  "task": {"optimizers", "params"},
  "packed": {"lazy", "traced"},
  "traced": {"lazy"},
  "trainer": {*BASE, "program"},
}


class Module:
  """A source file and the names it imports when it runs."""

  def __init__(self, path: pathlib.Path) -> None:
    self.path = path
    self.name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    self.name = self.name.removesuffix(".__init__")
    self.tree = ast.parse(path.read_text())
    self.imports = set(_imports(self.tree))

  def parts(self) -> set[str]:
    """Lists the parts of tfpipe that it imports, but for its own."""
    found = {_part(name) for name in self.imports if name.startswith("tfpipe.")}
    return found - {_part(self.name)}


def _imports(node: ast.AST) -> Iterator[str]:
  """Yields the full name of every module imported, and of what is taken from it."""
  below = list(ast.iter_child_nodes(node))
  if isinstance(node, ast.Import):
    yield from (alias.name for alias in node.names)
  elif isinstance(node, ast.ImportFrom):
    assert not node.level, "imports are absolute"
    yield from (f"{node.module}.{alias.name}" for alias in node.names)
  elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
    below = node.orelse
  for child in below:
    yield from _imports(child)


def _part(name: str) -> str:
  """Gives the part of tfpipe that a module belongs to."""
  # The checks of Params values are a file of the optimizers, and need nothing of them.
  if name.startswith("tfpipe.checks"):
    return "checks"
  package, _, rest = name.partition(".")
  return rest.split(".")[0] if package == "tfpipe" else package


def modules(*packages: str) -> list[Module]:
  paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
  return [Module(path) for path in sorted(paths)]


TFPIPE = [module for module in modules("tfpipe") if module.name != "tfpipe"]


def test_the_walk_sees_what_it_should():
  by_name = {module.name: module for module in TFPIPE}
  assert "tfpipe.schedule.schedule.Schedule" in by_name["tfpipe.plan"].imports
  assert by_name["tfpipe.task"].parts() == {"optimizers", "params"}
  # Inside a function.
  assert "tensorflow_datasets" in by_name["tfpipe.input.tfds_input"].imports
  code = "if TYPE_CHECKING:\n  import a\nelse:\n  import b\ndef f():\n  import c.d\n"
  assert set(_imports(ast.parse(code))) == {"b", "c.d"}


@pytest.mark.parametrize("module", TFPIPE, ids=lambda module: module.name)
def test_a_part_imports_only_what_it_may(module):
  part = _part(module.name)
  allowed = BASE if part in BASE else MAY_IMPORT[part]
  assert module.parts() <= allowed, module.parts() - allowed


def test_every_part_has_a_rule():
  parts = {_part(module.name) for module in TFPIPE}
  assert parts == {*BASE, *MAY_IMPORT}


def test_only_lazy_imports_tensorflow():
  for module in modules(*PACKAGES):
    roots = {name.split(".")[0] for name in module.imports}
    assert "tensorflow" not in roots, module.name
    assert "keras" not in roots, module.name
    if "tensorflow_datasets" in roots:
      assert module.name == "tfpipe.input.tfds_input"


def test_cutting_and_ordering_know_no_layers():
  for module in TFPIPE:
    if _part(module.name) in ("partition", "schedule", "simulate"):
      assert not module.parts() & {"layers", "lazy", "model", "plan", "task"}


def test_only_the_pipeline_knows_both_schedules_and_layers():
  both = {
    _part(module.name)
    for module in TFPIPE
    if {"schedule", "layers"} <= {*module.parts(), _part(module.name)}
  }
  assert both == {"pipeline"}


def test_the_library_knows_no_model_and_no_experiment():
  for module in TFPIPE:
    roots = {name.split(".")[0] for name in module.imports}
    assert not roots & {"models", "params", "tests", "tools"}, module.name


def test_models_know_no_experiment_and_no_program():
  for module in modules("models"):
    assert not {name.split(".")[0] for name in module.imports} & {"params", "tests"}
    assert not module.parts() & {"input", "pipeline", "plan", "program", "trainer"}


def test_modules_are_imported_by_name_in_three_places_only():
  dynamic = {m.name for m in modules(*PACKAGES) if "importlib" in m.imports}
  assert dynamic == {"tfpipe.lazy", "tfpipe.registry", "tfpipe.value_text"}


def test_flags_belong_to_the_trainer():
  with_flags = {
    module.name
    for module in modules(*PACKAGES)
    if any(name.split(".")[0] == "absl" for name in module.imports)
  }
  assert with_flags == {"tfpipe.trainer"}


def test_no_file_is_long():
  for module in modules(*PACKAGES, "tests", "tools"):
    assert len(module.path.read_text().splitlines()) <= LONGEST_FILE, module.name


_WITHOUT_TENSORFLOW = """
import importlib, sys
for name in sys.argv[1:]:
  importlib.import_module(name)
from tfpipe import plan, registry
for name in registry.List():
  assert plan.make(registry.Get(name)().Model()).costs
loaded = [name for name in sys.modules if name.split(".")[0] in ("tensorflow", "keras")]
assert not loaded, loaded
print(len(registry.List()))
"""


def test_everything_can_be_imported_and_planned_without_tensorflow():
  names = [module.name for module in modules(*PACKAGES)]
  ended = subprocess.run(
    [sys.executable, "-c", _WITHOUT_TENSORFLOW, *names],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  assert ended.returncode == 0, ended.stderr
  assert int(ended.stdout) >= 2


def test_a_plan_is_shown_without_what_runs_a_network():
  code = "import sys, tfpipe.trainer; print(*sys.modules)"
  ended = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
  )
  loaded = set(ended.stdout.split())
  assert "tfpipe.program.planning" in loaded
  slow = {"numpy", "tfpipe.pipeline", "tfpipe.optimizers", "tfpipe.program.run"}
  assert not loaded & slow
