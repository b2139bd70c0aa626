"""Checks of Params values at the door: each message names field, value and range."""

from __future__ import annotations

from typing import Any, TypeVar

from tfpipe.params import InstantiableParams, Params
from tfpipe.spelling import nearest

T = TypeVar("T")


def check_number(owner: object, params: Params, name: str, interval: str) -> float:
  """Returns the number `params.name` if it lies in an interval.

  Args:
    owner: the object the Params belong to; its class is named in the message.
    params: holds the value.
    name: the field.
    interval: such as `'[0, 1)'` or `'(0, inf)'`; a bracket includes its end.

  Raises:
    TypeError: the value is no number.
    ValueError: the value lies outside, or is NaN.
  """
  value = params.Get(name)
  _check_type(owner, name, value, (int, float), f"a number in {interval}")
  low, high = (float(end) for end in interval[1:-1].split(","))
  above = value >= low if interval[0] == "[" else value > low
  below = value <= high if interval[-1] == "]" else value < high
  if not (above and below):
    raise ValueError(_message(owner, name, value, f"a number in {interval}"))
  return float(value)


def check_count(owner: object, params: Params, name: str, minimum: int) -> int:
  """Returns the integer `params.name` if it is at least `minimum`.

  Raises:
    TypeError: the value is no integer.
    ValueError: the value is smaller.
  """
  value = params.Get(name)
  allowed = f"an integer of at least {minimum}"
  _check_type(owner, name, value, (int,), allowed)
  if value < minimum:
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


def check_choice(
  owner: object, params: Params, name: str, choices: tuple[str, ...]
) -> str:
  """Returns the string `params.name` if it is one of the choices.

  Raises:
    ValueError: it isn't.
  """
  value = params.Get(name)
  if value not in choices:
    allowed = "one of " + ", ".join(repr(choice) for choice in choices)
    raise ValueError(
      _message(owner, name, value, allowed) + nearest(str(value), choices)
    )
  return value


def instantiate(owner: object, params: Params, name: str, base: type[T]) -> T:
  """Returns the object described by `params.name`, an instance of `base`.

  Raises:
    TypeError: the value isn't the Params of such a class.
  """
  value = params.Get(name)
  if not (isinstance(value, InstantiableParams) and issubclass(value.cls, base)):
    allowed = f"the Params of a class derived from {base.__name__}"
    raise TypeError(_message(owner, name, value, allowed))
  return value.Instantiate()


def _check_type(
  owner: object, name: str, value: Any, types: tuple[type, ...], allowed: str
) -> None:
  # A bool is an int to Python, and a number to nobody.
  if isinstance(value, bool) or not isinstance(value, types):
    raise TypeError(_message(owner, name, value, allowed))


def _message(owner: object, name: str, value: Any, allowed: str) -> str:
  return f"{type(owner).__name__}.{name} = {value!r}: it must be {allowed}"
