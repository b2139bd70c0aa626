"""Which texts share a row, so that little of it is padding."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np


def pack(lengths: Sequence[int], size: int) -> list[list[int]]:
  """Puts items into rows, each into the fullest row that has room, the longest first.

  Best fit decreasing, as for sequences in Krell et al., arXiv:2107.02027, section 3:
  rows are known by their room alone, so that the time grows with the items and not with
  the rows.

  Args:
    lengths: of the items, each at least 1 and at most `size`.
    size: of a row.

  Returns:
    The numbers of the items of each row: a function of the arguments alone.
  """
  rows: list[list[int]] = []
  by_room: dict[int, list[int]] = {}
  rooms: list[int] = []  # those in by_room, ascending
  # Equal lengths keep their order.
  for item in np.argsort(-np.asarray(lengths), kind="stable").tolist():
    length = lengths[item]
    place = bisect.bisect_left(rooms, length)
    if place < len(rooms):
      room = rooms[place]
      row = by_room[room].pop()
      if not by_room[room]:
        del by_room[room], rooms[place]
    else:
      room, row = size, len(rows)
      rows.append([])
    rows[row].append(item)
    room -= length
    if room and room not in by_room:
      bisect.insort(rooms, room)
    if room:
      by_room.setdefault(room, []).append(row)
  return rows
