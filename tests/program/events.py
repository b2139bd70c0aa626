"""Reads event files with nothing but TensorFlow's own messages."""

from __future__ import annotations

import pathlib
from typing import Any

import tensorflow as tf


def read(folder: pathlib.Path) -> list[Any]:
  """Gives the events of a folder's own files, in the order of their names."""
  paths = sorted(str(path) for path in folder.glob("events.out.tfevents.*"))
  records = tf.data.TFRecordDataset(paths).as_numpy_iterator() if paths else ()
  return [tf.compat.v1.Event.FromString(record) for record in records]


def scalars(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
  """Gives the points of each tag."""
  found: dict[str, list[tuple[int, float]]] = {}
  for event in read(folder):
    for value in event.summary.value:
      if value.WhichOneof("value") == "simple_value":
        found.setdefault(value.tag, []).append((event.step, value.simple_value))
  return found


def values(folder: pathlib.Path, tag: str) -> list[Any]:
  """Gives everything that was written under a tag, or under one that it begins."""
  return [
    value
    for event in read(folder)
    for value in event.summary.value
    if value.tag.startswith(tag)
  ]
