import importlib
import pathlib
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator

import pytest

import params
from tfpipe import registry
from tfpipe.experiment import Experiment

Write = Callable[[str, str], pathlib.Path]

EXPERIMENT = """
from tfpipe import registry
from tfpipe.experiment import Experiment

@registry.Register
class {}(Experiment):
  pass
"""


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
  """Gives a writer of modules, those under params and others; starts with none."""
  before = dict(sys.modules)
  for name in before:
    if name.startswith("params."):
      monkeypatch.delitem(sys.modules, name)
  (tmp_path / "params").mkdir()
  monkeypatch.setattr(params, "__path__", [str(tmp_path / "params")])
  monkeypatch.setattr(registry, "_experiments", {})
  monkeypatch.syspath_prepend(tmp_path)

  def write_module(name: str, text: str) -> pathlib.Path:
    *packages, module = name.split(".")
    folder = tmp_path
    for package in packages:
      folder = folder / package
      folder.mkdir(exist_ok=True)
      (folder / "__init__.py").touch()
    path = folder / f"{module}.py"
    path.write_text(textwrap.dedent(text))
    importlib.invalidate_caches()
    return path

  yield write_module
  for name in sys.modules.keys() - before.keys():
    del sys.modules[name]


@pytest.fixture
def zoo(write: Write) -> Write:
  """Two params files with two experiments each."""
  text = EXPERIMENT.format("AmoebaNetTiny") + EXPERIMENT.format("AmoebaNetLarge")
  write("params.image.fashion_mnist", text)
  text = EXPERIMENT.format("Char") + EXPERIMENT.format("Word")
  write("params.lm.shakespeare", text)
  return write


def test_an_experiment_is_found_by_module_and_class(zoo: Write) -> None:
  cls = registry.Get("image.fashion_mnist.AmoebaNetTiny")
  assert issubclass(cls, Experiment)
  assert cls.__name__ == "AmoebaNetTiny"
  assert cls.__module__ == "params.image.fashion_mnist"
  assert registry.Get("image.fashion_mnist.AmoebaNetTiny") is cls
  assert registry.Get("params.image.fashion_mnist.AmoebaNetTiny") is cls


def test_only_the_params_file_asked_for_is_imported(zoo: Write) -> None:
  registry.Get("image.fashion_mnist.AmoebaNetTiny")
  assert "params.lm" not in sys.modules
  assert "params.lm.shakespeare" not in sys.modules


def test_an_experiment_of_a_package_itself_is_found(write: Write) -> None:
  write("params.image.__init__", EXPERIMENT.format("Tiny"))
  assert registry.Get("image.Tiny").__module__ == "params.image"


def test_any_other_module_goes_by_its_full_name(write: Write) -> None:
  write("my_pkg.my_params", EXPERIMENT.format("Tiny"))
  cls = registry.Get("my_pkg.my_params.Tiny")
  assert cls.__module__ == "my_pkg.my_params"
  assert registry.List() == ["my_pkg.my_params.Tiny"]


def test_the_list_has_all_experiments_sorted(zoo: Write) -> None:
  assert registry.List() == [
    "image.fashion_mnist.AmoebaNetLarge",
    "image.fashion_mnist.AmoebaNetTiny",
    "lm.shakespeare.Char",
    "lm.shakespeare.Word",
  ]


def test_the_list_may_be_empty(write: Write) -> None:
  assert registry.List() == []


# Unknown names.


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "image.fashion_mnist.AmoebaNetTny",
      "^there is no experiment 'image.fashion_mnist.AmoebaNetTny'; nearest are: "
      "image.fashion_mnist.AmoebaNetTiny, image.fashion_mnist.AmoebaNetLarge$",
    ),
    (
      "image.fashon_mnist.AmoebaNetTiny",
      "nearest are: image.fashion_mnist.AmoebaNetTi",
    ),
    ("fashion_mnist.AmoebaNetTiny", "nearest are: image.fashion_mnist.AmoebaNetTiny"),
    ("lm.shakespear.Char", "nearest are: lm.shakespeare.Char"),
    (
      f"image.fashion_mnist.{'Z' * 60}",
      "nearest are: image.fashion_mnist.AmoebaNetLarge, image.fashion_mnist.Amoeba",
    ),
    ("params.lm.shakespeare.Chr", "no experiment 'lm.shakespeare.Chr'; nearest are"),
    (
      "Char",
      "^there is no experiment 'Char'; params files are: image, image.fashion_mnist, "
      "lm, lm.shakespeare; ask for <file>.<Class>, of these or of this folder$",
    ),
    ("zzz.Qqqqq", "params files are: image, image.fashion_mnist, lm, lm.shakespeare"),
    ("", "no experiment ''; params files are"),
    ("a..B", "no experiment 'a..B'; params files are"),
    ("lm.shakespeare.Char.X", "nearest are: lm.shakespeare.Char"),
    ("os.path.join", "no experiment 'os.path.join'"),
  ],
)
def test_an_unknown_name_lists_the_nearest(zoo: Write, name: str, message: str) -> None:
  with pytest.raises(LookupError, match=message):
    registry.Get(name)


def test_a_file_of_the_current_folder_is_near_and_not_run(
  zoo: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  zoo("my_params", "raise RuntimeError('run')")
  monkeypatch.chdir(tmp_path / "params")
  message = r"ask for <file>\.<Class>, of these or of this folder"
  with pytest.raises(LookupError, match=f"{message}$"):
    registry.Get("my_param.Tiny")
  monkeypatch.chdir(tmp_path)
  with pytest.raises(LookupError, match=f"{message}; did you mean 'my_params'\\?$"):
    registry.Get("my_param.Tiny")
  # The package of all experiments is beside it, and is none of them.
  with pytest.raises(LookupError, match=f"{message}; did you mean 'my_params'\\?$"):
    registry.Get("parms.Tiny")


def test_without_params_files_there_is_nothing_near(write: Write) -> None:
  with pytest.raises(
    LookupError, match=r"no experiment 'a\.B'; params files are: none"
  ):
    registry.Get("a.B")


def test_suggestions_import_only_the_modules_that_may_hold_the_name(zoo: Write) -> None:
  with pytest.raises(LookupError, match="nearest are"):
    registry.Get("lm.shakespear.Char")
  assert "params.lm.shakespeare" in sys.modules
  assert "params.image.fashion_mnist" not in sys.modules


def test_a_class_that_is_not_registered_says_so(write: Write) -> None:
  write("params.image.new", EXPERIMENT.format("A").replace("@registry.Register", ""))
  message = (
    "params.image.new.A is no registered experiment; decorate it with @registry.R"
  )
  with pytest.raises(LookupError, match=message):
    registry.Get("image.new.A")


def test_a_class_of_a_module_without_a_file_is_found(
  write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
  module = types.ModuleType("made_by_hand")
  cls = type("Tiny", (Experiment,), {"__module__": "made_by_hand"})
  monkeypatch.setattr(module, "Tiny", cls, raising=False)
  monkeypatch.setitem(sys.modules, "made_by_hand", module)
  message = r"made_by_hand\.Tiny is no registered experiment"
  with pytest.raises(LookupError, match=message):
    registry.Get("made_by_hand.Tiny")


def test_a_class_imported_from_another_params_file_has_one_name(zoo: Write) -> None:
  zoo("params.image.other", "from params.image.fashion_mnist import AmoebaNetTiny")
  message = "no experiment 'image.other.AmoebaNetTiny'"
  with pytest.raises(LookupError, match=message):
    registry.Get("image.other.AmoebaNetTiny")


# Broken params files.


def test_an_error_in_a_params_file_is_shown_with_the_file(zoo: Write) -> None:
  path = zoo("params.image.broken", EXPERIMENT.format("Tiny") + "1 / 0\n")
  for ask in (lambda: registry.Get("image.broken.Tiny"), registry.List):
    with pytest.raises(ImportError) as caught:
      ask()
    message = f"{path} cannot be imported: ZeroDivisionError: division by zero"
    assert str(caught.value) == message
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_module_missing_inside_a_params_file_is_an_error_of_the_file(
  write: Write,
) -> None:
  path = write("params.image.broken", "import no_such_module_at_all")
  with pytest.raises(ImportError, match="No module named 'no_such_module_at_all'") as e:
    registry.Get("image.broken.Tiny")
  assert str(path) in str(e.value)


def test_a_syntax_error_is_shown_with_the_file(write: Write) -> None:
  path = write("params.broken", "def")
  with pytest.raises(ImportError, match="cannot be imported: SyntaxError") as caught:
    registry.Get("broken.Tiny")
  assert str(path) in str(caught.value)


def test_an_error_in_a_package_on_the_way_is_shown(write: Write) -> None:
  write("params.image.new", EXPERIMENT.format("Tiny"))
  path = write("params.image.__init__", "1 / 0")
  for ask in (lambda: registry.Get("image.new.Tiny"), registry.List):
    with pytest.raises(ImportError, match="ZeroDivisionError") as caught:
      ask()
    assert str(path) in str(caught.value)


def test_a_file_that_hides_all_params_files_is_named(
  write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  write("mine", EXPERIMENT.format("Tiny"))
  hiding = write("params", EXPERIMENT.format("Tiny"))
  monkeypatch.delitem(sys.modules, "params")
  (tmp_path / "params").rmdir()
  assert registry.Get("mine.Tiny").__module__ == "mine"
  for name in ("lm.shakespeare.Char", "params.Tiny", "nope"):
    with pytest.raises(ImportError, match=rf"{re.escape(str(hiding))} hides the pac"):
      registry.Get(name)


def test_half_a_file_registers_nothing_and_can_be_repaired(write: Write) -> None:
  path = write("params.broken", EXPERIMENT.format("Tiny") + "1 / 0\n")
  for _ in range(2):
    with pytest.raises(ImportError, match="division by zero"):
      registry.Get("broken.Tiny")
  path.write_text(EXPERIMENT.format("Tiny"))
  importlib.invalidate_caches()
  assert registry.Get("broken.Tiny").__name__ == "Tiny"


# Registering.


def test_two_classes_of_one_name_are_refused(write: Write) -> None:
  path = write("params.twice", EXPERIMENT.format("Tiny") * 2)
  message = (
    "two experiments have the name 'twice.Tiny': params.twice.Tiny and params.tw"
  )
  with pytest.raises(ImportError, match=message) as caught:
    registry.Get("twice.Tiny")
  assert str(path) in str(caught.value)
  assert isinstance(caught.value.__cause__, ValueError)


def test_a_module_outside_params_cannot_take_a_name_of_params(zoo: Write) -> None:
  registry.Get("lm.shakespeare.Char")
  namesake = type("Char", (Experiment,), {"__module__": "lm.shakespeare"})
  with pytest.raises(ValueError, match=r"two experiments have the name 'lm\.shakes"):
    registry.Register(namesake)


def test_one_class_may_be_registered_again(zoo: Write) -> None:
  cls = registry.Get("lm.shakespeare.Char")
  assert registry.Register(cls) is cls


@pytest.mark.parametrize("value", [int, Experiment(), "x"])
def test_only_experiments_can_be_registered(write: Write, value: object) -> None:
  with pytest.raises(
    TypeError, match="only subclasses of Experiment can be registered"
  ):
    registry.Register(value)  # pyright: ignore[reportArgumentType]
