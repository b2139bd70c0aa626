"""Published and recomputed figures of AmoebaNet, as golden data.

Wiring: the tables of Real et al.'s cells in the form of GPipe's author's TPU code.
Counts and multiply-adds: recomputed from that code with a shape-only stand-in for
TensorFlow 1; AmoebaNet-B (18, 512) has the 557 million parameters of the GPipe paper.
"""

from __future__ import annotations

from typing import NamedTuple

# (genotype, kind of cell): pairs of operation(state), then the states concatenated.
WIRING = {
  ("a", "normal"): """
    avg_pool_3x3(0) + max_pool_3x3(0)
    separable_3x3_2(1) + none(1)
    none(0) + avg_pool_3x3(1)
    separable_3x3_2(0) + separable_5x5_2(2)
    avg_pool_3x3(5) + separable_3x3_2(0)
    1 3 4 6""",
  ("a", "reduction"): """
    separable_3x3_2(1) + avg_pool_3x3(0)
    max_pool_3x3(0) + separable_7x7_2(2)
    max_pool_3x3(1) + max_pool_3x3(0)
    separable_3x3_2(4) + 1x7_7x1(0)
    avg_pool_3x3(1) + separable_7x7_2(0)
    2 3 4 5 6""",
  ("b", "normal"): """
    1x1(1) + max_pool_3x3(1)
    none(1) + separable_3x3_2(0)
    1x1(1) + separable_3x3_2(0)
    1x1(2) + none(2)
    avg_pool_3x3(1) + 1x1(5)
    0 3 4 6""",
  ("b", "reduction"): """
    max_pool_2x2(0) + max_pool_3x3(0)
    none(2) + 3x3(1)
    dil_2_separable_5x5_2(2) + max_pool_3x3(2)
    none(3) + separable_3x3_2(1)
    avg_pool_3x3(4) + 1x1(3)
    5 6""",
  ("c", "normal"): """
    avg_pool_3x3(0) + separable_3x3_2(0)
    none(0) + separable_3x3_2(0)
    avg_pool_3x3(2) + separable_3x3_2(1)
    none(0) + separable_3x3_2(1)
    avg_pool_3x3(3) + separable_3x3_2(0)
    1 2 4 5 6""",
  ("c", "reduction"): """
    max_pool_3x3(0) + max_pool_3x3(0)
    separable_7x7_2(2) + separable_3x3_2(0)
    separable_7x7_2(0) + max_pool_3x3(1)
    separable_5x5_2(4) + separable_5x5_2(4)
    max_pool_3x3(1) + separable_3x3_2(1)
    0 2 3 4 5 6""",
  ("d", "normal"): """
    1x1(1) + max_pool_3x3(1)
    none(1) + 1x7_7x1(0)
    1x1(0) + 1x7_7x1(0)
    max_pool_3x3(2) + none(2)
    avg_pool_3x3(1) + 1x1(5)
    0 3 4 6""",
  ("d", "reduction"): """
    max_pool_2x2(0) + max_pool_3x3(0)
    none(2) + 3x3(1)
    1x7_7x1(2) + max_pool_3x3(2)
    none(3) + max_pool_2x2(1)
    avg_pool_3x3(2) + 1x1(3)
    4 5 6""",
}


class Count(NamedTuple):
  """Trained parameters of a network; with_aux: at 224 pixels and 1001 classes."""

  genotype: str
  num_cells: int
  num_filters: int
  plain: int
  with_aux: int | None


COUNTS = [
  Count("d", 18, 208, 81_137_437, 81_785_166),
  Count("d", 18, 416, 317_541_696, 318_277_617),
  Count("d", 18, 544, 540_196_240, 540_986_433),
  Count("d", 36, 544, 1_053_293_776, 1_054_083_969),
  Count("d", 72, 512, 1_842_610_248, 1_843_386_873),
  Count("b", 18, 512, 557_277_864, 558_054_489),
  Count("d", 18, 256, 121_911_016, 122_579_097),
  Count("d", 18, 128, 31_555_384, None),
]


class Row(NamedTuple):
  """A layer: channels, parameters, those of batch norms; {image: (side, GMAC)}."""

  name: str
  channels: int
  params: int
  norm_params: int
  maps: dict[int, tuple[int, str]]


def _rows(text: str, images: tuple[int, ...]) -> list[Row]:
  rows = []
  for line in text.strip().splitlines():
    name, channels, params, norms, *rest = (cell.strip() for cell in line.split("|"))
    counts = (int(cell.replace(",", "")) for cell in (channels, params, norms))
    maps = zip((int(side) for side in rest[::2]), rest[1::2], strict=True)
    rows.append(Row(name, *counts, dict(zip(images, maps, strict=True))))
  return rows


B_18_512 = _rows(
  """
  stem_conv | 32 | 928 | 64 | 111 | 0.011 | 165 | 0.024 | 239 | 0.049
  stem_cell_0 | 256 | 97,824 | 1,920 | 56 | 0.348 | 83 | 0.765 | 120 | 1.600
  stem_cell_1 | 512 | 492,800 | 4,352 | 28 | 0.595 | 42 | 1.323 | 60 | 2.732
  cell_0 | 2048 | 2,519,040 | 10,240 | 28 | 1.967 | 42 | 4.426 | 60 | 9.032
  cell_1 | 2048 | 3,173,376 | 9,216 | 28 | 2.481 | 42 | 5.582 | 60 | 11.391
  cell_2 | 2048 | 4,222,976 | 10,240 | 28 | 3.303 | 42 | 7.431 | 60 | 15.166
  cell_3 | 2048 | 4,222,976 | 10,240 | 28 | 3.303 | 42 | 7.431 | 60 | 15.166
  cell_4 | 2048 | 4,222,976 | 10,240 | 28 | 3.303 | 42 | 7.431 | 60 | 15.166
  cell_5 | 2048 | 4,222,976 | 10,240 | 28 | 3.303 | 42 | 7.431 | 60 | 15.166
  reduction_0 | 2048 | 10,638,336 | 17,408 | 14 | 4.702 | 21 | 10.580 | 30 | 21.591
  cell_6 | 4096 | 12,640,256 | 20,480 | 14 | 2.473 | 21 | 5.565 | 30 | 11.358
  cell_7 | 4096 | 14,737,408 | 20,480 | 14 | 2.885 | 21 | 6.490 | 30 | 13.245
  cell_8 | 4096 | 16,834,560 | 20,480 | 14 | 3.296 | 21 | 7.415 | 30 | 15.133
  cell_9 | 4096 | 16,834,560 | 20,480 | 14 | 3.296 | 21 | 7.415 | 30 | 15.133
  cell_10 | 4096 | 16,834,560 | 20,480 | 14 | 3.296 | 21 | 7.415 | 30 | 15.133
  cell_11 | 4096 | 16,834,560 | 20,480 | 14 | 3.296 | 21 | 7.415 | 30 | 15.133
  reduction_1 | 4096 | 42,379,264 | 34,816 | 7 | 4.695 | 11 | 10.828 | 15 | 21.560
  cell_12 | 8192 | 50,446,336 | 40,960 | 7 | 2.470 | 11 | 6.099 | 15 | 11.341
  cell_13 | 8192 | 58,834,944 | 40,960 | 7 | 2.881 | 11 | 7.114 | 15 | 13.229
  cell_14 | 8192 | 67,223,552 | 40,960 | 7 | 3.292 | 11 | 8.129 | 15 | 15.116
  cell_15 | 8192 | 67,223,552 | 40,960 | 7 | 3.292 | 11 | 8.129 | 15 | 15.116
  cell_16 | 8192 | 67,223,552 | 40,960 | 7 | 3.292 | 11 | 8.129 | 15 | 15.116
  cell_17 | 8192 | 67,223,552 | 40,960 | 7 | 3.292 | 11 | 8.129 | 15 | 15.116
  classifier | 1000 | 8,193,000 | 0 | 1 | 0.008 | 1 | 0.008 | 1 | 0.008
  """,
  (224, 331, 480),
)
B_18_512_GMAC = {224: "65.08", 331: "150.70", 480: "298.79"}

D_18_256 = _rows(
  """
  stem_conv | 32 | 928 | 64 | 111 | 0.011
  stem_cell_0 | 192 | 18,464 | 800 | 56 | 0.079
  stem_cell_1 | 384 | 86,592 | 1,600 | 28 | 0.144
  cell_0 | 1024 | 528,640 | 4,352 | 28 | 0.411
  cell_1 | 1024 | 741,632 | 4,352 | 28 | 0.578
  cell_2 | 1024 | 905,472 | 4,352 | 28 | 0.706
  cell_3 | 1024 | 905,472 | 4,352 | 28 | 0.706
  cell_4 | 1024 | 905,472 | 4,352 | 28 | 0.706
  cell_5 | 1024 | 905,472 | 4,352 | 28 | 0.706
  reduction_0 | 1536 | 1,956,096 | 6,400 | 14 | 1.037
  cell_6 | 2048 | 2,826,752 | 8,704 | 14 | 0.552
  cell_7 | 2048 | 3,351,040 | 8,704 | 14 | 0.655
  cell_8 | 2048 | 3,613,184 | 8,704 | 14 | 0.706
  cell_9 | 2048 | 3,613,184 | 8,704 | 14 | 0.706
  cell_10 | 2048 | 3,613,184 | 8,704 | 14 | 0.706
  cell_11 | 2048 | 3,613,184 | 8,704 | 14 | 0.706
  reduction_1 | 3072 | 7,811,584 | 12,800 | 7 | 1.037
  cell_12 | 4096 | 11,289,600 | 17,408 | 7 | 0.552
  cell_13 | 4096 | 13,386,752 | 17,408 | 7 | 0.655
  cell_14 | 4096 | 14,435,328 | 17,408 | 7 | 0.706
  cell_15 | 4096 | 14,435,328 | 17,408 | 7 | 0.706
  cell_16 | 4096 | 14,435,328 | 17,408 | 7 | 0.706
  cell_17 | 4096 | 14,435,328 | 17,408 | 7 | 0.706
  classifier | 1000 | 4,097,000 | 0 | 1 | 0.004
  """,
  (224,),
)
D_18_256_GMAC = {224: "14.19"}


class Split(NamedTuple):
  """Best split by multiply-adds; millions of elements sent per image at each cut."""

  genotype: str
  num_filters: int
  image: int
  sizes: tuple[int, ...]
  largest_over_mean: str
  sent: tuple[str, ...]


SPLITS = [
  Split("b", 512, 480, (13, 11), "1.017", ("7.37",)),
  Split("b", 512, 480, (8, 5, 5, 6), "1.048", ("14.75", "7.37", "2.76")),
  Split(
    "b",
    512,
    480,
    (6, 2, 2, 3, 2, 2, 3, 4),
    "1.214",
    ("14.75", "14.75", "9.22", "7.37", "7.37", "4.61", "3.69"),
  ),
  Split("d", 256, 224, (13, 11), "1.014", ("0.80",)),
  Split("d", 256, 224, (8, 5, 5, 6), "1.045", ("1.61", "0.80", "0.35")),
  Split(
    "d",
    256,
    224,
    (6, 2, 2, 3, 3, 2, 3, 3),
    "1.195",
    ("1.61", "1.61", "1.10", "0.80", "0.80", "0.35", "0.40"),
  ),
]
