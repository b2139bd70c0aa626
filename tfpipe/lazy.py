"""TensorFlow, imported at its first use: `from tfpipe.lazy import tf`.

Reading a params file, asking layers for their cost, planning and drawing need no
TensorFlow, whose import takes seconds.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _LazyModule(ModuleType):
  """Stands for a module and imports it when an attribute is first asked for."""

  def __getattr__(self, name: str) -> Any:
    return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
  import tensorflow as tf
else:
  tf = _LazyModule("tensorflow")
