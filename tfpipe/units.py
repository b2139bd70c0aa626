"""Numbers for people: bytes, counts, floating-point operations and seconds.

Formatting rounds to what a reader takes in; parsing is exact, and refuses what it
would have to round.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tfpipe.spelling import nearest

__all__ = [
  "format_bytes",
  "format_count",
  "format_flops",
  "format_secs",
  "parse_bytes",
  "parse_count",
  "parse_flops",
  "parse_secs",
]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT = ("", "K", "M", "B", "T")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_SECS = {
  "ns": Fraction(1, 10**9),
  "us": Fraction(1, 10**6),
  "ms": Fraction(1, 10**3),
  "s": Fraction(1),
  "min": Fraction(60),
  "h": Fraction(3600),
}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def format_bytes(num_bytes: float) -> str:
  """Returns e.g. '1.5 GiB', '512 B' (powers of 1024)."""
  return _format(num_bytes, _BINARY, 1024, " ")


def format_count(count: float) -> str:
  """Returns e.g. '557.3M', '83.9B', '12' (B is 10**9)."""
  return _format(count, _COUNT, 1000, "")


def format_flops(flops: float) -> str:
  """Returns e.g. '3.4 GFLOP' (powers of 1000)."""
  return _format(flops, _FLOPS, 1000, " ")


def format_secs(secs: float) -> str:
  """Returns e.g. '1.25 ms', '48 us', '3600 s': three significant digits."""
  scales = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
  # 0.9996 of a unit is shown with three digits as 1, so it is one.
  large_enough = (unit for unit in scales if abs(secs) * scales[unit] >= 0.9995)
  unit = next(large_enough, "ns" if secs else "s")
  value = secs * scales[unit]
  digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
  return f"{digits} {unit}"


def parse_bytes(text: str) -> int:
  """Reads '1.5 GiB', '16 GB' (decimal), '512 B' or '512'; ValueError if not whole."""
  units = {**_powers(_DECIMAL, 1000), **_powers(_BINARY, 1024), "": Fraction(1)}
  return _whole(text, "bytes", units)


def parse_count(text: str) -> int:
  """Reads '557.3M', '83.9B', '12'; ValueError if not whole."""
  return _whole(text, "count", _powers(_COUNT, 1000))


def parse_flops(text: str) -> int:
  """Reads '3.4 GFLOP'; a bare number counts operations; ValueError if not whole."""
  return _whole(text, "flops", {**_powers(_FLOPS, 1000), "": Fraction(1)})


def parse_secs(text: str) -> float:
  """Reads '1.25 ms', '2 min', '3 s'; the unit is required."""
  return float(_parse(text, "seconds", _SECS))


def _format(value: float, units: Sequence[str], base: int, space: str) -> str:
  """Scales by powers of base until what is shown, one decimal, is below base."""
  power = 0
  while power < len(units) - 1 and round(abs(value), 1 if power else 0) >= base:
    value /= base
    power += 1
  digits = f"{value:.1f}" if power else f"{value:.0f}"
  return f"{digits}{space}{units[power]}"


def _powers(units: Sequence[str], base: int) -> dict[str, Fraction]:
  return {unit: Fraction(base**power) for power, unit in enumerate(units)}


def _parse(text: str, what: str, units: Mapping[str, Fraction]) -> Fraction:
  match = _NUMBER.fullmatch(text)
  if not match:
    raise ValueError(f"{what} {text!r}: expected a number >= 0 and a unit")
  number, unit = match.groups()
  if unit not in units:
    known = ", ".join(name for name in units if name)
    raise ValueError(
      f"{what} {text!r}: unit {unit!r} is not one of {known}{nearest(unit, units)}"
    )
  return Fraction(number) * units[unit]


def _whole(text: str, what: str, units: Mapping[str, Fraction]) -> int:
  value = _parse(text, what, units)
  if value.denominator != 1:
    raise ValueError(f"{what} {text!r}: is {float(value)}, not a whole number")
  return int(value)
