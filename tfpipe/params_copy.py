"""Copies of values from one Params to another."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from tfpipe.params import Params


def CopyFieldsTo(
  from_p: Params,
  to_p: Params,
  skip: Iterable[str] = (),
  ignore_unknown_keys: bool = False,
) -> Params:
  """Copies values, all but `cls`, from one Params to another; lists and Params deeply.

  Args:
    from_p: the source.
    to_p: the destination. Keys that only it has stay as they are.
    skip: more names that are not copied.
    ignore_unknown_keys: leave out the keys that the destination lacks.

  Returns:
    to_p

  Raises:
    AttributeError: the destination lacks a key, or the source one of `skip`.
    TypeError: the destination is immutable.
  """
  skip = {*skip, "cls"}
  for name in skip - {"cls"}:
    from_p.Get(name)
  names = [name for name in from_p.GetKeys() if name not in skip]
  if ignore_unknown_keys:
    names = [name for name in names if name in to_p]
  return CopyFieldsSubsetTo(from_p, to_p, names)


def CopyFieldsSubsetTo(from_p: Params, to_p: Params, fields: Iterable[str]) -> Params:
  """Copies the values of the named keys from one Params to another.

  Returns:
    to_p

  Raises:
    AttributeError: one of both lacks a key.
    TypeError: the destination is immutable.
  """
  return to_p.Set(**{name: copy.deepcopy(from_p.Get(name)) for name in fields})
