"""The first examples of a mini-batch, as a person sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfpipe.input import text_input
from tfpipe.input.base import Input
from tfpipe.input.text_input import CharInput

NUM_SAMPLES = 8
_COLOURS = (1, 3, 4)

_CHARACTERS = ("ids", "labels")
"""Fields of a `CharInput` whose integers are characters."""


def images(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Gives the pictures of each field that holds some: uint8, [number, S, S, C].

  The least value of a picture becomes black, the largest white: what an input has
  scaled it by does not matter. What is not finite counts as 0.

  Args:
    batch: fields; float32 [batch, height, width, 1, 3 or 4] are pictures.
  """
  found = {}
  for name, tensor in batch.items():
    shape = tuple(tensor.shape)
    if len(shape) == 4 and shape[3] in _COLOURS and tensor.dtype == np.float32:
      pictures = np.asarray(tensor[:NUM_SAMPLES], np.float64)
      pictures = np.nan_to_num(pictures, nan=0, posinf=0, neginf=0)
      low = pictures.min(axis=(1, 2, 3), keepdims=True)
      span = pictures.max(axis=(1, 2, 3), keepdims=True) - low
      scaled = 255 * (pictures - low) / np.where(span > 0, span, 1)
      found[name] = np.round(scaled).astype(np.uint8)
  return found


def texts(source: Input, batch: Mapping[str, Any]) -> dict[str, list[str]]:
  """Gives the texts of each field that holds rows of ids, as lines of Markdown code.

  Args:
    source: the input; where it knows no characters, ids are shown.
    batch: fields; integers [batch, time] are texts.
  """
  found = {}
  for name, tensor in batch.items():
    if is_text(tensor):
      rows = np.asarray(tensor[:NUM_SAMPLES]).tolist()
      found[name] = [_code(_text(source, name, row)) for row in rows]
  return found


def is_text(tensor: Any) -> bool:
  """Says whether a field holds rows of ids."""
  return len(tensor.shape) == 2 and tensor.dtype.is_integer


def _text(source: Input, name: str, ids: list[int]) -> str:
  # Packed rows also have numbers and positions of texts, which are no characters.
  if isinstance(source, CharInput) and name in _CHARACTERS:
    return text_input.decode(ids)
  return " ".join(map(str, ids))


def _code(text: str) -> str:
  return "\n".join("    " + line for line in text.splitlines())
