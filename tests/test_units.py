from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfpipe import units


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (0, "0 B"),
    (1023, "1023 B"),
    (1024, "1.0 KiB"),
    (3 * 2**29, "1.5 GiB"),
    (2**30 - 1, "1.0 GiB"),
    (5000 * 2**50, "5000.0 PiB"),
  ],
)
def test_bytes_are_shown_in_powers_of_1024(value: int, text: str) -> None:
  assert units.format_bytes(value) == text


@pytest.mark.parametrize(
  ("value", "text"),
  [(12, "12"), (557_300_000, "557.3M"), (83.9e9, "83.9B"), (999_960, "1.0M")],
)
def test_counts_are_shown_in_powers_of_1000(value: float, text: str) -> None:
  assert units.format_count(value) == text


def test_flops_are_shown_with_their_unit() -> None:
  assert units.format_flops(3.44e9) == "3.4 GFLOP"
  assert units.format_flops(7) == "7 FLOP"


@pytest.mark.parametrize(
  ("secs", "text"),
  [
    (0, "0 s"),
    (0.00125, "1.25 ms"),
    (48e-6, "48 us"),
    (2e-9, "2 ns"),
    (1e-10, "0.1 ns"),
    (0.99951, "1 s"),
    (0.9994, "999 ms"),
    (12.345, "12.3 s"),
    (3600.4, "3600 s"),
  ],
)
def test_seconds_are_shown_with_three_digits(secs: float, text: str) -> None:
  assert units.format_secs(secs) == text


def test_parsing_reads_the_units_people_write() -> None:
  assert units.parse_bytes("1.5 GiB") == 3 * 2**29
  assert units.parse_bytes("16GB") == 16 * 10**9
  assert units.parse_bytes("512") == units.parse_bytes("512 B") == 512
  assert units.parse_count("557.3M") == 557_300_000
  assert units.parse_flops("3.4 GFLOP") == 3_400_000_000
  assert units.parse_flops("1e3") == 1000
  assert units.parse_secs("1.25 ms") == 0.00125
  assert units.parse_secs("2 min") == 120.0


def test_parsing_names_the_nearest_unit() -> None:
  with pytest.raises(ValueError, match=r"'1 Gib': unit 'Gib' is not one of .*GiB"):
    units.parse_bytes("1 Gib")
  with pytest.raises(ValueError, match="unit '' is not one of ns"):
    units.parse_secs("3")


@pytest.mark.parametrize("text", ["", "GiB", "-1 B", "1 2 B", "nan"])
def test_parsing_refuses_what_is_no_quantity(text: str) -> None:
  with pytest.raises(ValueError, match=r"expected a number >= 0|is not one of"):
    units.parse_bytes(text)


def test_parsing_refuses_to_round() -> None:
  with pytest.raises(ValueError, match=r"'0.3 KiB': is 307.2, not a whole number"):
    units.parse_bytes("0.3 KiB")


@given(st.integers(0, 2**60))
def test_bytes_shown_are_near_the_bytes_meant(value: int) -> None:
  shown = units.format_bytes(value).split()
  scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(shown[1])
  assert abs(float(shown[0]) * scale - value) <= 0.0501 * scale
