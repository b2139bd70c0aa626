"""Event files, which TensorBoard reads, written without TensorBoard.

TensorFlow's own `tf.summary.scalar` and its likes need the package `tensorboard`; the
file is nothing but records of TensorFlow's message `Event`.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import struct_pb2

from tfpipe.lazy import tf

HParam = bool | float | str

# Files of one second and one process must not share a name.
_NUMBERS = itertools.count()
# Number of the field session_start_info of TensorBoard's HParamsPluginData, with wire
# type 2: a length and that many bytes.
_SESSION_START = bytes([3 << 3 | 2])


class EventFile:
  """Appends to an event file in a folder; both are made when there is something.

  What writes raises OSError if it cannot.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder
    self._writer: Any = None

  def start(self, step: int) -> None:
    """Says that a run begins with this step; what it had from there on is void."""
    start = _v1().SessionLog.START
    self._write(step, session_log=_v1().SessionLog(status=start))

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Writes a point of each of these curves, by tag."""
    self._write(
      step,
      [_v1().Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()],
    )

  def images(self, step: int, tag: str, images: np.ndarray) -> None:
    """Writes pictures, uint8 [number, height, width, 1, 3 or 4 channels]."""
    rows = []
    for index, image in enumerate(images):
      height, width, channels = image.shape
      with tf.device("CPU:0"):
        png = tf.io.encode_png(image).numpy()
      picture = _v1().Summary.Image(
        height=height, width=width, colorspace=channels, encoded_image_string=png
      )
      rows.append(_v1().Summary.Value(tag=f"{tag}/image/{index}", image=picture))
    self._write(step, rows)

  def texts(self, step: int, tag: str, texts: Sequence[str]) -> None:
    """Writes texts, which TensorBoard takes for Markdown."""
    tensor = tf.make_tensor_proto([text.encode() for text in texts], tf.string)
    metadata = _metadata("text")
    value = _v1().Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
    self._write(step, [value])

  def hparams(self, values: Mapping[str, HParam]) -> None:
    """Writes what the run was made with, for its row of the page HPARAMS."""
    # A Struct is encoded as SessionStartInfo is that has nothing but a map of values.
    columns = struct_pb2.Struct()
    columns.update(dict(values))
    session = columns.SerializeToString(deterministic=True)
    metadata = _metadata("hparams", _SESSION_START + _sized(session))
    tag = "_hparams_/session_start_info"
    self._write(0, [_v1().Summary.Value(tag=tag, metadata=metadata)])

  def _write(self, step: int, values: Sequence[Any] = (), **fields: Any) -> None:
    try:
      if values:
        fields["summary"] = _v1().Summary(value=values)
      self._append(step, fields)
    except tf.errors.OpError as error:
      raise OSError(f"{self._folder}: {error.message}") from error

  def _append(self, step: int, fields: Mapping[str, Any]) -> None:
    event, now = _v1().Event, time.time()
    if self._writer is None:
      self._folder.mkdir(parents=True, exist_ok=True)
      name = (
        f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}."
        f"{next(_NUMBERS)}"
      )
      self._writer = tf.io.TFRecordWriter(str(self._folder / name))
      first = event(wall_time=now, file_version="brain.Event:2")
      self._writer.write(first.SerializeToString())
    written = event(wall_time=now, step=step, **fields)
    self._writer.write(written.SerializeToString())
    self._writer.flush()


def _v1() -> Any:
  """Gives the module of the messages, of which the types of TensorFlow know little."""
  return tf.compat.v1


def _metadata(plugin: str, content: bytes = b"") -> Any:
  data = _v1().SummaryMetadata.PluginData(plugin_name=plugin, content=content)
  return _v1().SummaryMetadata(plugin_data=data)


def _sized(content: bytes) -> bytes:
  """Puts the length of bytes before them, seven bits in a byte, the lowest first."""
  length, prefix = len(content), []
  while length > 127:
    prefix.append(length & 127 | 128)
    length >>= 7
  return bytes([*prefix, length]) + content
