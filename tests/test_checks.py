"""Checks at the door: field, value and what is allowed are in every message."""

import math

import pytest

from tfpipe import checks
from tfpipe.params import InstantiableParams, Params


class Owner:
  pass


def params(value):
  p = Params()
  p.Define("rate", value, "A rate.")
  return p


def number(value, interval):
  return checks.check_number(Owner(), params(value), "rate", interval)


@pytest.mark.parametrize(
  ("value", "interval"),
  [
    (0, "[0, 1)"),
    (0.999, "[0, 1)"),
    (1, "(0, 1]"),
    (1e38, "[0, inf)"),
    (-1e38, "(-inf, inf)"),
    (1e-37, "(0, inf)"),
    (2.0**-126, "(0, inf)"),
  ],
)
def test_a_number_inside_is_given_back_as_a_float(value, interval):
  assert number(value, interval) == value
  assert type(number(value, interval)) is float


@pytest.mark.parametrize(
  ("value", "interval"),
  [
    (0, "(0, 1]"),
    (1.0, "[0, 1)"),
    (-0.5, "[0, inf)"),
    (math.inf, "[0, inf)"),
    (-math.inf, "(-inf, inf)"),
    (math.nan, "(-inf, inf)"),
  ],
)
def test_a_number_outside_is_refused(value, interval):
  with pytest.raises(ValueError, match="it must be") as error:
    number(value, interval)
  assert (
    str(error.value) == f"Owner.rate = {value!r}: it must be a number in {interval}"
  )


@pytest.mark.parametrize(
  ("value", "interval", "rounded"),
  [
    (1e39, "[0, inf)", "inf"),
    (10**400, "[0, inf)", "inf"),
    (-1e39, "(-inf, inf)", "-inf"),
    (1e-50, "(0, inf)", "0"),
    # Off without a word, were it not refused.
    (1e-50, "[0, inf)", "0"),
    # TensorFlow flushes what float32 keeps with fewer digits.
    (1e-40, "[0, inf)", "0"),
    (0.99999999, "[0, 1)", "1"),
  ],
)
def test_a_number_that_float32_does_not_keep_is_refused(value, interval, rounded):
  with pytest.raises(ValueError, match="it must be") as error:
    number(value, interval)
  assert str(error.value) == (
    f"Owner.rate = {value!r}: it must be a number in {interval} in float32 too, where "
    f"it becomes {rounded}"
  )


@pytest.mark.parametrize("value", [True, None, "0.5", [0.5]])
def test_what_is_no_number_is_refused(value):
  with pytest.raises(TypeError, match=r"^Owner\.rate = .*: it must be a number in \["):
    number(value, "[0, 1]")


def test_a_count_lies_between_its_ends():
  def count(value):
    return checks.check_count(Owner(), params(value), "rate", 1, 3)

  assert [count(value) for value in (1, 2, 3)] == [1, 2, 3]
  for value, error in [
    (0, ValueError),
    (4, ValueError),
    (2.0, TypeError),
    (True, TypeError),
  ]:
    with pytest.raises(error) as refused:
      count(value)
    message = f"rate = {value!r}: it must be an integer of at least 1 and at most 3"
    assert str(refused.value) == f"Owner.{message}"
  with pytest.raises(ValueError, match=r"it must be an integer of at least 1$"):
    checks.check_count(Owner(), params(0), "rate", 1)


def test_a_choice_is_one_of_the_values():
  def choice(value, choices):
    return checks.check_choice(Owner(), params(value), "rate", choices)

  assert choice("stop", ("stop", "skip")) == "stop"
  assert choice(3, (1, 3)) == 3
  with pytest.raises(
    ValueError, match=r"^Owner\.rate = 'stpo': it .* 'stop', 'skip'; did you mean 'st"
  ):
    choice("stpo", ("stop", "skip"))
  with pytest.raises(ValueError, match="rate = True: it must be one of 1, 3"):
    choice(True, (1, 3))


def test_texts_and_switches_are_of_their_types():
  assert checks.check_text(Owner(), params("x"), "rate") == "x"
  assert checks.check_bool(Owner(), params(True), "rate") is True
  with pytest.raises(TypeError, match=r"^Owner\.rate = 1: it must be a string$"):
    checks.check_text(Owner(), params(1), "rate")
  with pytest.raises(TypeError, match=r"^Owner\.rate = 1: it must be True or False$"):
    checks.check_bool(Owner(), params(1), "rate")


def test_the_params_of_an_object_are_made_into_it():
  made = checks.instantiate(Owner(), params(_thing()), "rate", Thing)
  assert type(made) is Thing
  for value in (None, Thing, Params(), _thing().Set(cls=Owner)):
    with pytest.raises(TypeError, match="the Params of a class derived from Thing"):
      checks.instantiate(Owner(), params(value), "rate", Thing)


class Thing:
  def __init__(self, p):
    self.params = p


def _thing():

  return InstantiableParams(Thing)


def test_a_count_is_no_larger_than_what_tensorflow_has():
  def count(value):
    return checks.check_count(Owner(), params(value), "rate", 1)

  assert count(2**63 - 1) == 2**63 - 1
  with pytest.raises(ValueError, match=r"and at most 9223372036854775807$"):
    count(2**63)
