"""AmoebaNet as a sequence of layers (TPU variant of Real et al., as GPipe used it).

    image → stem_conv → stem_cell_0 → stem_cell_1 → cells → classifier
                                                      │
    cell_0 … │ reduction_0 │ cell_(L/3) … │ reduction_1 │ cell_(2L/3) … cell_(L-1)
       F     │     2F      │     2F       │     4F      │     4F filters

Between cells travel two arrays: the output of the last cell and of the one before.
"""

from __future__ import annotations

import dataclasses

from models.amoebanet.blocks import ConvChain, conv_params
from models.amoebanet.cell import Cell
from models.amoebanet.genotype import GENOTYPES
from models.amoebanet.heads import AuxCell, AuxHead, Classifier, Logits
from tfpipe.checks import (
  check_bool,
  check_choice,
  check_count,
  check_number,
)
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.dropout import Dropout, DropPath
from tfpipe.layers.window import output_side
from tfpipe.params import InstantiableParams
from tfpipe.task import Task

# Stride and padding of the stem's convolution.
_STEM_CONV = {"imagenet": (2, "VALID"), "small": (1, "SAME")}
_MINIMUMS = {
  "num_cells": 3,
  "num_classes": 2,
  "image_size": 1,
  "channels": 1,
  "stem_filters": 1,
  "dilation": 1,
  "drop_path_steps": 1,
}


class AmoebaNet(Task):
  """AmoebaNet-X (L, D): L = num_cells normal cells, the first of D = num_filters.

  Batch fields: `image`, float32 [batch, image_size, image_size, channels]; `label`,
  integer [batch]; `weight`, float32 [batch].
  """

  INPUT_FIELDS = ("image",)

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params."""
    p = super().Params()
    p.Define("genotype", "amoebanet_d", f"One of {', '.join(GENOTYPES)}.")
    p.Define("num_cells", 18, "L: number of normal cells, in three stacks.")
    p.Define("num_filters", 256, "D: filters of the first stack; then 2D and 4D.")
    p.Define("num_classes", 1000, "Number of classes.")
    p.Define("image_size", 224, "Height and width of an image, pixels.")
    p.Define("channels", 3, "Channels of an image.")
    p.Define(
      "stem",
      "imagenet",
      "imagenet: convolution of stride 2 and two reduction cells; small: convolution "
      "of stride 1 only, for images of about 30 pixels.",
    )
    p.Define("stem_filters", 32, "Filters of the stem's convolution.")
    p.Define("norm", BatchNorm.Params(), "Params of every batch norm.")
    p.Define("dilation", 1, "Dilation of dil_2_ operations: 1 as published, 2 by name.")
    p.Define("dropout_keep", 0.5, "Probability to keep an input of the logits.")
    p.Define("drop_path_keep", 1.0, "Probability to keep an operation; 1 is off.")
    p.Define("drop_path_steps", 1, "Step at which drop_path_keep is reached.")
    p.Define(
      "drop_path_version", "v1", "v1: equal for all cells; v3: later cells drop more."
    )
    p.Define("label_smoothing", 0.1, "Part of a label spread over all classes.")
    p.Define("aux_head", False, "Whether a middle cell has a second classifier.")
    p.Define("aux_weight", 0.4, "Factor on the loss of the second classifier.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    check_choice(self, p, "genotype", tuple(GENOTYPES))
    check_choice(self, p, "stem", tuple(_STEM_CONV))
    check_choice(self, p, "drop_path_version", ("v1", "v3"))
    for name, minimum in _MINIMUMS.items():
      check_count(self, p, name, minimum)
    if p.stem == "imagenet":
      check_count(self, p, "image_size", 3)
    check_count(self, p, "num_filters", 16 if p.stem == "imagenet" else 4)
    if p.num_filters % 4:
      raise ValueError(
        f"AmoebaNet.num_filters = {p.num_filters}: it must be a multiple of 4"
      )
    for name in ("dropout_keep", "drop_path_keep"):
      check_number(self, p, name, "(0, 1]")
    check_number(self, p, "label_smoothing", "[0, 1)")
    check_number(self, p, "aux_weight", "(0, inf)")
    if check_bool(self, p, "aux_head"):
      self._check_aux_side()

  def _check_aux_side(self) -> None:
    p = self.params
    side = self._stem_side()
    for _ in range(3 if p.stem == "imagenet" else 1):
      side = _halved(side)
    if side < 5:
      raise ValueError(
        f"AmoebaNet.aux_head = True: its map has a side of {side} pixels at image_size "
        f"= {p.image_size}; it must be at least 5"
      )

  def Layers(self) -> list[InstantiableParams]:
    """Lists stem, cells and classifier by the names of the sketch above."""
    p = self.params
    plans = self._plans()
    layers = [self._stem_conv()]
    before, last = None, _Map(self._stem_side(), p.stem_filters)
    for index, plan in enumerate(plans):
      params = self._cell(plan, last, before, self._drop_path(index, len(plans)))
      before, last = last, _output(params, last.side)
      layers.append(self._aux_cell(params, last) if plan.has_aux else params)
    layers.append(self._classifier(last.channels))
    return layers

  def _plans(self) -> list[_CellPlan]:
    p = self.params
    filters, plans = p.num_filters, []
    if p.stem == "imagenet":
      plans = [
        _CellPlan("stem_cell_0", filters // 4, is_reduction=True),
        _CellPlan("stem_cell_1", filters // 2, is_reduction=True),
      ]
    ends = [p.num_cells // 3, 2 * p.num_cells // 3]
    for cell in range(p.num_cells):
      if cell in ends:
        filters *= 2
        name = f"reduction_{ends.index(cell)}"
        plans.append(_CellPlan(name, filters, is_reduction=True))
      has_aux = p.aux_head and cell == ends[1] - 1
      plans.append(_CellPlan(f"cell_{cell}", filters, has_aux=has_aux))
    return plans

  def _stem_side(self) -> int:
    p = self.params
    return output_side(p.image_size, 3, *_STEM_CONV[p.stem])

  def _stem_conv(self) -> InstantiableParams:
    p = self.params
    stride, padding = _STEM_CONV[p.stem]
    conv = conv_params((3, 3), p.channels, p.stem_filters, (stride, stride))
    return ConvChain.Params().Set(
      name="stem_conv", convs=[conv.Set(padding=padding)], norm=p.norm.Copy()
    )

  def _cell(
    self, plan: _CellPlan, x: _Map, previous: _Map | None, drop_path: InstantiableParams
  ) -> InstantiableParams:
    p = self.params
    params = (AuxCell if plan.has_aux else Cell).Params()
    params.Set(
      name=plan.name,
      genotype=p.genotype,
      reduction=plan.is_reduction,
      filters=plan.filters,
      input_channels=x.channels,
      dilation=p.dilation,
      norm=p.norm.Copy(),
      drop_path=drop_path,
    )
    if previous is not None:
      is_larger = previous.side != x.side
      params.Set(previous_channels=previous.channels, previous_is_larger=is_larger)
    return params

  def _aux_cell(self, params: InstantiableParams, output: _Map) -> InstantiableParams:
    p = self.params
    head = AuxHead.Params().Set(
      side=output.side,
      input_channels=output.channels,
      num_classes=p.num_classes,
      norm=p.norm.Copy(),
    )
    loss = ClassifierLoss.Params().Set(label_smoothing=p.label_smoothing)
    return params.Set(aux_head=head, aux_loss=loss, aux_weight=p.aux_weight)

  def _drop_path(self, index: int, num_cells: int) -> InstantiableParams:
    p = self.params
    keep = p.drop_path_keep
    if p.drop_path_version == "v3":
      keep = 1 - (index + 1) / num_cells * (1 - keep)
    return DropPath.Params().Set(keep_prob=keep, total_steps=p.drop_path_steps)

  def _classifier(self, channels: int) -> InstantiableParams:
    p = self.params
    logits = Logits.Params().Set(input_channels=channels, num_classes=p.num_classes)
    return Classifier.Params().Set(
      name="classifier",
      dropout=Dropout.Params().Set(keep_prob=p.dropout_keep),
      logits=logits,
      loss=ClassifierLoss.Params().Set(label_smoothing=p.label_smoothing),
    )


@dataclasses.dataclass(frozen=True)
class _CellPlan:
  """A cell to be made."""

  name: str
  filters: int
  is_reduction: bool = False
  has_aux: bool = False


@dataclasses.dataclass(frozen=True)
class _Map:
  """What a layer gives: side and channels."""

  side: int
  channels: int


def _output(params: InstantiableParams, side: int) -> _Map:
  genotype = GENOTYPES[params.genotype]
  wiring = genotype.reduction if params.reduction else genotype.normal
  if params.reduction:
    side = _halved(side)
  return _Map(side, params.filters * len(wiring.concat))


def _halved(side: int) -> int:
  return output_side(side, 1, 2, "SAME")
