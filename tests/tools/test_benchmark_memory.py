"""The search for the largest network; what it measures is no test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.benchmark_memory import largest


def _counted(function):
  calls = []

  def measure(n):
    assert n not in calls  # a measurement is expensive
    calls.append(n)
    return function(n)

  return measure, calls


def test_a_line_is_met_in_four_measurements():
  measure, calls = _counted(lambda n: 100 + 7 * n)
  # 100 + 7·84 = 688 and 100 + 7·88 = 716.
  assert largest(measure, 700, 4) == 84
  assert len(calls) == 4


@given(
  start=st.integers(0, 50),
  slope=st.integers(1, 20),
  curve=st.integers(0, 3),
  step=st.sampled_from([1, 2, 4]),
  limit=st.integers(100, 3000),
)
def test_the_largest_that_fits_is_found_whatever_the_curve(
  start, slope, curve, step, limit
):
  def size(n):
    return start + slope * n + curve * n * n / 10

  measure, _ = _counted(size)
  if size(step) > limit:
    with pytest.raises(ValueError, match="more than"):
      largest(measure, limit, step)
    return
  found = largest(measure, limit, step)
  assert found % step == 0
  assert size(found) <= limit < size(found + step)
