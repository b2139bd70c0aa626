"""Networks that cost what a test says: no weights but numbers, no TensorFlow."""

from __future__ import annotations

from tfpipe import model
from tfpipe.cost import ArraySpec
from tfpipe.input.image_input import SyntheticImageInput
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.nested_map import NestedMap
from tfpipe.params import Params
from tfpipe.task import Task

BATCH, SIDE = 12, 5


class Priced(Layer):
  """Costs what its Params say; gives [batch, width]."""

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("flops", 0, "For each example.")
    p.Define("matmul_flops", 0, "Of these, in products; for each example.")
    p.Define("weights", 0, "Number of weights.")
    p.Define("tied_to", "", "Name of a weight that its weight is.")
    p.Define("width", 1, "Numbers for each example that it gives.")
    p.Define("inside", 0, "Bytes for each example that it keeps.")
    return p

  def __init__(self, params):
    super().__init__(params)
    if params.flops < 0:
      raise ValueError(f"Priced.flops = {params.flops}: it must be at least 0")
    if params.weights:
      weight = WeightParams((params.weights,), tied_to=params.tied_to)
      self.CreateVariable("w", weight)

  @classmethod
  def FPropMeta(cls, params, *inputs):
    rows = inputs[0].shape[0]
    return cls._Priced(params, rows, ArraySpec((rows, params.width)))

  @classmethod
  def _Priced(cls, p, rows, out):
    return cls.Cost(
      p,
      out,
      flops=(p.flops - p.matmul_flops) * rows,
      matmul_flops=p.matmul_flops * rows,
      activation_bytes=p.inside * rows,
    )


class PricedLoss(Priced):
  SIDE_INPUTS = ("label",)

  @classmethod
  def FPropMeta(cls, params, *inputs):
    x, side = inputs
    scalar = ArraySpec(())
    assert list(side) == ["label"]
    assert side.label.shape == x.shape[:1]
    return cls._Priced(params, x.shape[0], NestedMap(loss=(scalar, scalar)))


class PricedTask(Task):
  INPUT_FIELDS = ("image",)

  @classmethod
  def Params(cls):
    p = super().Params()
    p.Define("layers", [], "Params of the layers.")
    return p

  def Layers(self):
    return self.params.layers


def network(*flops: int, **fields: object) -> list:
  """Gives layers `layer_0`, ..., `loss` that cost so many FLOPs for each example.

  Before them is `entry`, which costs nothing: nobody needs the gradient at its input,
  so every other layer has a whole backward, of two forwards: each has a weight.
  """
  fields = {"weights": 1, **fields}
  layers = [Priced.Params().Set(name="entry")]
  layers += [
    Priced.Params().Set(name=f"layer_{i}", flops=cost, **fields)
    for i, cost in enumerate(flops[:-1])
  ]
  return [*layers, PricedLoss.Params().Set(name="loss", flops=flops[-1], **fields)]


def params(
  *flops: int, layers=None, task=PricedTask, batch=BATCH, **pipeline
) -> Params:
  """Gives a run of such layers, or of others, without re-materialization."""
  p = model.ModelParams(
    "priced",
    task.Params().Set(layers=network(*flops) if layers is None else layers),
    SyntheticImageInput.Params().Set(batch_size=batch, image_size=SIDE),
    None,
  )
  p.pipeline.Set(**{"remat": "none", **pipeline})
  return p
