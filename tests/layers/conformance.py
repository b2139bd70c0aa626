"""The table of layers that `test_conformance.py` holds to the contract of layers.

A row is (id, factory of Params, ArraySpecs of the inputs, ArraySpecs of the side inputs
or None). Text layers are in `conformance_text.py`.
"""

from __future__ import annotations

from models.amoebanet.blocks import (
  ConvChain,
  FactorizedReduction,
  Identity,
  ProjectedPool,
  conv_params,
)
from models.amoebanet.cell import Cell
from models.amoebanet.heads import AuxCell, AuxHead, Classifier, Logits
from models.amoebanet.operations import pointwise
from tfpipe.cost import ArraySpec
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.conv import Conv2D, SeparableConv2D
from tfpipe.layers.dropout import Dropout, DropPath
from tfpipe.layers.pooling import AvgPool, GlobalAvgPool, MaxPool
from tfpipe.params import InstantiableParams

_BATCH, _SIDE, _IN, _OUT, _CLASSES = 3, 7, 6, 8, 7


def _map(side: int = _SIDE, channels: int = _IN) -> ArraySpec:
  return ArraySpec((_BATCH, side, side, channels))


_X = (_map(),)
_LABELS = {"label": ArraySpec((_BATCH,), "int32"), "weight": ArraySpec((_BATCH,))}
_NORM = BatchNorm.Params()
_DROP = DropPath.Params().Set(keep_prob=0.5, total_steps=10)


def _conv(**settings) -> InstantiableParams:
  p = Conv2D.Params().Set(name="conv", filter_shape=(3, 3, _IN, _OUT))
  return p.Set(**settings)


def _separable(**settings) -> InstantiableParams:
  p = SeparableConv2D.Params().Set(name="conv", filter_shape=(5, 5, _IN, _OUT))
  return p.Set(**settings)


def _chain() -> InstantiableParams:
  convs = [conv_params((1, 1), _IN, 4, (1, 1)), conv_params((3, 3), 4, _OUT, (2, 2))]
  return ConvChain.Params().Set(name="chain", convs=convs)


def _reduction() -> InstantiableParams:
  return FactorizedReduction.Params().Set(
    name="reduction", input_channels=_IN, filters=_OUT
  )


def _projected(pool: InstantiableParams) -> InstantiableParams:
  projection = pointwise(_IN, _OUT, 1, _NORM)
  return ProjectedPool.Params().Set(name="pool", pool=pool, projection=projection)


def _cell(genotype: str, cls: type[Cell] = Cell, **settings) -> InstantiableParams:
  p = cls.Params().Set(
    name="cell",
    genotype=f"amoebanet_{genotype}",
    filters=_OUT,
    input_channels=_IN,
    previous_channels=5,
  )
  return p.Set(**settings)


def _aux_cell() -> InstantiableParams:
  head = AuxHead.Params().Set(side=8, input_channels=4 * _OUT, num_classes=_CLASSES)
  return _cell("d", AuxCell, aux_head=head)


def _classifier() -> InstantiableParams:
  return Classifier.Params().Set(
    name="classifier",
    dropout=Dropout.Params().Set(keep_prob=0.5),
    logits=Logits.Params().Set(input_channels=_IN, num_classes=_CLASSES),
    loss=ClassifierLoss.Params().Set(label_smoothing=0.1),
  )


def _loss(**settings) -> InstantiableParams:
  return ClassifierLoss.Params().Set(name="loss", **settings)


def _logits(classes: int) -> tuple[ArraySpec, ...]:
  return (ArraySpec((_BATCH, classes)),)


_PAIR = (_map(), _map(channels=5))
_PAIR_OF_SIZES = (_map(8), _map(16, channels=5))

ROWS = [
  ("conv", _conv, _X, None),
  ("conv-1x1", lambda: _conv(filter_shape=(1, 1, _IN, _OUT)), _X, None),
  ("conv-stride", lambda: _conv(filter_stride=(2, 1)), _X, None),
  ("conv-valid", lambda: _conv(padding="VALID", filter_stride=(2, 2)), _X, None),
  ("conv-frozen", lambda: _conv(trainable=False), _X, None),
  ("separable", _separable, _X, None),
  ("separable-stride", lambda: _separable(stride=2), _X, None),
  ("separable-dilated", lambda: _separable(dilation=2), _X, None),
  ("batch-norm", lambda: _NORM.Copy().Set(name="norm", dim=_IN), _X, None),
  (
    "batch-norm-frozen",
    lambda: _NORM.Copy().Set(name="norm", dim=_IN, trainable=False),
    _X,
    None,
  ),
  ("max-pool", lambda: MaxPool.Params().Set(name="pool", stride=2), _X, None),
  ("avg-pool", lambda: AvgPool.Params().Set(name="pool"), _X, None),
  ("avg-pool-valid", lambda: AvgPool.Params().Set(padding="VALID"), _X, None),
  ("global-pool", lambda: GlobalAvgPool.Params().Set(name="pool"), _X, None),
  ("dropout", lambda: Dropout.Params().Set(name="drop", keep_prob=0.7), _X, None),
  ("no-dropout", lambda: Dropout.Params().Set(name="drop"), _X, None),
  ("drop-path", lambda: _DROP.Copy().Set(name="drop", num_paths=2), _X * 2, None),
  ("loss", _loss, _logits(_CLASSES), _LABELS),
  ("loss-smooth", lambda: _loss(label_smoothing=0.1), _logits(_CLASSES), _LABELS),
  ("loss-few-classes", _loss, _logits(5), _LABELS),
  ("identity", lambda: Identity.Params().Set(name="none"), _X, None),
  ("conv-chain", _chain, _X, None),
  ("reduction-odd", _reduction, _X, None),
  ("reduction-even", _reduction, (_map(8),), None),
  ("projected-max-pool", lambda: _projected(MaxPool.Params()), _X, None),
  ("projected-avg-pool", lambda: _projected(AvgPool.Params()), _X, None),
  ("cell-a", lambda: _cell("a"), _PAIR, None),
  ("cell-b", lambda: _cell("b"), _PAIR, None),
  ("cell-c", lambda: _cell("c"), _PAIR, None),
  ("cell-d", lambda: _cell("d"), _PAIR, None),
  ("cell-d-drop-path", lambda: _cell("d", drop_path=_DROP), _PAIR, None),
  ("cell-d-first", lambda: _cell("d", previous_channels=0), _X, None),
  ("cell-d-larger", lambda: _cell("d", previous_is_larger=True), _PAIR_OF_SIZES, None),
  ("cell-a-reduction", lambda: _cell("a", reduction=True), _PAIR, None),
  ("cell-b-reduction", lambda: _cell("b", reduction=True), _PAIR, None),
  ("cell-b-dilated", lambda: _cell("b", reduction=True, dilation=2), _PAIR, None),
  ("cell-c-reduction", lambda: _cell("c", reduction=True), _PAIR, None),
  ("cell-d-reduction", lambda: _cell("d", reduction=True), _PAIR, None),
  ("cell-d-aux", _aux_cell, (_map(8), _map(8, channels=5)), _LABELS),
  ("classifier", _classifier, _PAIR, _LABELS),
]
