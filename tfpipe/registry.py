"""The registry: experiments by name, their params files imported when asked for.

The name `image.digits.Small` stands for the class `Small` of the module
`params.image.digits`. A class of any other module goes by its full name.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

from tfpipe import spelling
from tfpipe.experiment import Experiment

_PACKAGE = "params"
_NUM_NEAREST_MODULES = 3

_ExperimentT = TypeVar("_ExperimentT", bound=Experiment)
_experiments: dict[str, type[Experiment]] = {}


def Register(cls: type[_ExperimentT]) -> type[_ExperimentT]:
  """Decorates an Experiment so that `Get` finds it by its `Name()`.

  Raises:
    TypeError: `cls` is no subclass of Experiment.
    ValueError: another class has this name.
  """
  if not (isinstance(cls, type) and issubclass(cls, Experiment)):
    raise TypeError(f"only subclasses of Experiment can be registered; got {cls!r}")
  known = _experiments.setdefault(cls.Name(), cls)
  if known is not cls:
    places = f"{known.__module__}.{known.__qualname__}"
    places = f"{places} and {cls.__module__}.{cls.__qualname__}"
    raise ValueError(f"two experiments have the name {cls.Name()!r}: {places}")
  return cls


def Get(name: str) -> type[Experiment]:
  """Gives the experiment of a name such as `image.fashion_mnist.AmoebaNetTiny`.

  Raises:
    LookupError: there is none; the message lists the nearest names.
    ImportError: its params file, or what that imports, fails to load; or a file hides
      all of them.
  """
  name = name.removeprefix(f"{_PACKAGE}.")
  if name in _experiments:
    return _experiments[name]
  module_name, _, class_name = name.rpartition(".")
  for candidate in (f"{_PACKAGE}.{module_name}", module_name):
    module = _find(candidate)
    if name in _experiments:
      return _experiments[name]
    if getattr(getattr(module, class_name, None), "__module__", None) == candidate:
      raise LookupError(
        f"{candidate}.{class_name} is no registered experiment; decorate it with "
        "@registry.Register"
      )
  raise LookupError(f"there is no experiment {name!r}; {_nearest(name, module_name)}")


def List() -> list[str]:
  """Lists the names of all experiments, after importing all params files.

  Raises:
    ImportError: a params file fails to load, or another hides all of them.
  """
  for module_name in _module_names():
    _load(f"{_PACKAGE}.{module_name}")
  return sorted(_experiments)


def _nearest(name: str, module_name: str) -> str:
  """Says what names are nearest, importing only the modules that may hold them."""
  modules = _module_names()
  if module_name in modules:
    near = [module_name]
  else:
    near = spelling.close_matches(module_name, modules, _NUM_NEAREST_MODULES)
  for module in near:
    _load(f"{_PACKAGE}.{module}")
  known = [
    key for key in _experiments if key.rpartition(".")[0] in [*near, module_name]
  ]
  matches = spelling.close_matches(name, known) or sorted(known)
  if matches:
    return f"nearest are: {', '.join(matches)}"
  files = f"params files are: {', '.join(modules) or 'none'}"
  ask = "ask for <file>.<Class>, of these or of this folder"
  return f"{files}; {ask}{spelling.nearest(module_name, _own_files())}"


def _own_files() -> list[str]:
  """Lists the user's modules in the current folder; imports none."""
  here = [path for path in sys.path if path in ("", os.getcwd())]
  names = [info.name for info in pkgutil.iter_modules(here)]
  return [name for name in names if name != _PACKAGE]


def _module_names() -> list[str]:
  """Lists the modules under `params`, importing only the packages on the way."""
  package = _find(_PACKAGE)
  if package is not None and not hasattr(package, "__path__"):
    raise ImportError(
      f"{package.__file__} hides the package {_PACKAGE!r} with all experiments in it; "
      "rename the file"
    )
  names = _walk(package) if package is not None else ()
  return [name.removeprefix(f"{_PACKAGE}.") for name in names]


def _walk(package: ModuleType) -> Iterator[str]:
  for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
    yield info.name
    if info.ispkg:
      yield from _walk(_load(info.name))


def _find(module_name: str) -> ModuleType | None:
  """Imports a module; gives None if there is no file for it."""
  module = None
  parts = module_name.split(".")
  if not all(part.isidentifier() for part in parts):
    return None
  for full_name in itertools.accumulate(parts, "{}.{}".format):
    if module is not None and not hasattr(module, "__path__"):
      return None
    if full_name not in sys.modules and importlib.util.find_spec(full_name) is None:
      return None
    module = _load(full_name)
  return module


def _load(module_name: str) -> ModuleType:
  """Imports a module that exists; if its code fails, the error names the file."""
  if module_name in sys.modules:
    return sys.modules[module_name]
  spec = importlib.util.find_spec(module_name)
  try:
    return importlib.import_module(module_name)
  except Exception as error:
    for name, cls in list(_experiments.items()):
      if cls.__module__ not in sys.modules:  # half a file is not registered
        del _experiments[name]
    origin = spec.origin if spec else module_name
    reason = f"{type(error).__name__}: {error}"
    raise ImportError(f"{origin} cannot be imported: {reason}") from error
