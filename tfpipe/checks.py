"""Checks of Params values at the door: each message names field, value and range."""

from __future__ import annotations

import math
import struct
from typing import Any, TypeVar

from tfpipe.params import InstantiableParams, Params
from tfpipe.spelling import nearest

T = TypeVar("T")
Choice = TypeVar("Choice", str, int)

# The smallest number that float32 keeps in full; TensorFlow takes smaller ones for 0.
_TINY = 2.0**-126


def check_number(owner: object, params: Params, name: str, interval: str) -> float:
  """Returns the number `params.name` if it lies in an interval, in float32 as well.

  Args:
    owner: the object the Params belong to; its class is named in the message.
    params: holds the value.
    name: the field.
    interval: such as `'[0, 1)'` or `'(0, inf)'`; a bracket includes its end.

  Raises:
    TypeError: the value is no number.
    ValueError: the value lies outside, or is NaN; or it is rounded to what lies
      outside, to 0 or to infinity, in the float32 of all arithmetic.
  """
  return _number(owner, name, params.Get(name), interval)


def check_numbers(
  owner: object, params: Params, name: str, interval: str
) -> list[float]:
  """Returns the numbers of the list `params.name`, each as `check_number` says.

  Raises:
    TypeError: the value is no list or tuple, or one in it is no number.
    ValueError: one in it is refused.
  """
  values = params.Get(name)
  _check_type(owner, name, values, (list, tuple), f"a list of numbers in {interval}")
  return [_number(owner, f"{name}[{i}]", v, interval) for i, v in enumerate(values)]


MAX_INT = 2**63 - 1
"""The largest whole number that TensorFlow has."""


def check_count(
  owner: object, params: Params, name: str, minimum: int, maximum: int | None = None
) -> int:
  """Returns the integer `params.name` if it is at least `minimum`, at most `maximum`.

  Raises:
    TypeError: the value is no integer.
    ValueError: the value is smaller, or larger.
  """
  value = params.Get(name)
  allowed = f"an integer of at least {minimum}"
  if maximum is None and isinstance(value, int) and value > MAX_INT:
    maximum = MAX_INT  # said only to whom it concerns
  if maximum is not None:
    allowed += f" and at most {maximum}"
  _check_type(owner, name, value, (int,), allowed)
  if value < minimum or (maximum is not None and value > maximum):
    raise ValueError(_message(owner, name, value, allowed))
  return value


def check_bool(owner: object, params: Params, name: str) -> bool:
  """Returns the bool `params.name`.

  Raises:
    TypeError: the value is no bool.
  """
  value = params.Get(name)
  if not isinstance(value, bool):
    raise TypeError(_message(owner, name, value, "True or False"))
  return value


def check_text(owner: object, params: Params, name: str) -> str:
  """Returns the string `params.name`.

  Raises:
    TypeError: the value is no string.
  """
  value = params.Get(name)
  _check_type(owner, name, value, (str,), "a string")
  return value


def check_choice(
  owner: object, params: Params, name: str, choices: tuple[Choice, ...]
) -> Choice:
  """Returns the string or integer `params.name` if it is one of the choices.

  Raises:
    ValueError: it isn't.
  """
  value = params.Get(name)
  if isinstance(value, bool) or value not in choices:
    allowed = "one of " + ", ".join(repr(choice) for choice in choices)
    hint = nearest(str(value), [str(choice) for choice in choices])
    raise ValueError(_message(owner, name, value, allowed) + hint)
  return value


def instantiate(owner: object, params: Params, name: str, base: type[T]) -> T:
  """Returns the object described by `params.name`, an instance of `base`.

  Raises:
    TypeError: the value isn't the Params of such a class.
  """
  value = params.Get(name)
  cls = value.cls if isinstance(value, InstantiableParams) else None
  if not (isinstance(cls, type) and issubclass(cls, base)):
    allowed = f"the Params of a class derived from {base.__name__}"
    raise TypeError(_message(owner, name, value, allowed))
  return value.Instantiate()


def _number(owner: object, name: str, value: Any, interval: str) -> float:
  allowed = f"a number in {interval}"
  _check_type(owner, name, value, (int, float), allowed)
  if not _is_in(value, interval):
    raise ValueError(_message(owner, name, value, allowed))
  rounded = _float32(value)
  if not _is_in(rounded, interval) or (rounded == 0 and value != 0):
    allowed += f" in float32 too, where it becomes {rounded:g}"
    raise ValueError(_message(owner, name, value, allowed))
  return float(value)


def _is_in(value: float, interval: str) -> bool:
  low, high = (float(end) for end in interval[1:-1].split(","))
  above = value >= low if interval[0] == "[" else value > low
  below = value <= high if interval[-1] == "]" else value < high
  return above and below


def _float32(value: float) -> float:
  """Gives the number that float32 makes of a number."""
  try:
    (rounded,) = struct.unpack("f", struct.pack("f", float(value)))
  except OverflowError:
    return math.inf if value > 0 else -math.inf
  return rounded if abs(rounded) >= _TINY else 0.0


def _check_type(
  owner: object, name: str, value: Any, types: tuple[type, ...], allowed: str
) -> None:
  # A bool is an int to Python, and a number to nobody.
  if isinstance(value, bool) or not isinstance(value, types):
    raise TypeError(_message(owner, name, value, allowed))


def _message(owner: object, name: str, value: Any, allowed: str) -> str:
  if isinstance(value, InstantiableParams):  # of many lines
    value = f"the Params of {value.cls!r}"
  else:
    value = repr(value)
  return f"{type(owner).__name__}.{name} = {value}: it must be {allowed}"
