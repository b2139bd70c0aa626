"""Where AmoebaNet makes logits and losses: the classifier and the auxiliary head."""

from __future__ import annotations

from typing import Any

from models.amoebanet.blocks import ConvChain, conv_params, sum_costs
from models.amoebanet.cell import Cell
from tfpipe.checks import check_count, check_number
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers.base import Layer, WeightParams
from tfpipe.layers.batch_norm import BatchNorm
from tfpipe.layers.classifier_loss import ClassifierLoss
from tfpipe.layers.dropout import Dropout
from tfpipe.layers.pooling import AvgPool, GlobalAvgPool
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

# Width of the auxiliary head: 0.4 of NASNet's 128 and 768.
_AUX_FILTERS = (51, 307)


class Logits(Layer):
  """x · w + b: [batch, input_channels] → [batch, num_classes]."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; both are required."""
    p = super().Params()
    p.Define("input_channels", 0, "Channels of x.")
    p.Define("num_classes", 0, "Number of classes.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    channels = check_count(self, params, "input_channels", 1)
    classes = check_count(self, params, "num_classes", 2)
    kernel = WeightInit.TruncatedGaussianFanOut()
    self.CreateVariable("w", WeightParams((channels, classes), kernel, l2=True))
    self.CreateVariable("b", WeightParams((classes,), WeightInit.Constant(0.0)))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Computes the logits."""
    (x,) = inputs
    return tf.nn.bias_add(tf.matmul(x, theta.w), theta.b)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost."""
    (x,) = inputs
    y = ArraySpec((x.shape[0], params.num_classes), x.dtype)
    products = 2 * y.size * params.input_channels
    return cls.Cost(params, y, flops=y.size, matmul_flops=products)


class Classifier(Layer):
  """ReLU → global average pool → dropout → logits → loss.

  `FProp(theta, x, previous, side)`: x [batch, height, width, input_channels];
  `previous`, which every border between cells carries, is not read. Gives the metrics
  of `ClassifierLoss`.
  """

  SIDE_INPUTS = ClassifierLoss.SIDE_INPUTS

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `logits` must be set."""
    p = super().Params()
    p.Define("dropout", Dropout.Params(), "Params of the dropout before the logits.")
    p.Define("logits", Logits.Params(), "Params of the logits.")
    p.Define("loss", ClassifierLoss.Params(), "Params of the loss.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    self.pool: Layer
    self.dropout: Layer
    self.logits: Layer
    self.loss: Layer
    self.CreateChild("pool", GlobalAvgPool.Params())
    for name in ("dropout", "logits", "loss"):
      self.CreateChild(name, params.Get(name))

  def FProp(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Computes the metrics."""
    return self.loss.FProp(theta.loss, self._logits(theta, inputs[0]), inputs[-1])

  def Predict(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Gives `logits` and `probabilities`, float32 [batch, classes]."""
    return self.loss.Predict(theta.loss, self._logits(theta, inputs[0]))

  def _logits(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
    x = self.pool.FProp(theta.pool, tf.nn.relu(x))
    x = self.dropout.FProp(theta.dropout, x)
    return self.logits.FProp(theta.logits, x)

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; the ReLU's output and the input of the logits are kept."""
    x, side = inputs[0], inputs[-1]
    layer, kept, costs = params.Instantiate(), x.bytes, []
    for child in (layer.pool, layer.dropout, layer.logits):
      costs.append(child.FPropMeta(child.params, x))
      x = costs[-1].out_shapes
    costs.append(layer.loss.FPropMeta(layer.loss.params, x, side))
    kept += costs[1].out_shapes.bytes
    return sum_costs(cls, params, costs, costs[-1].out_shapes, kept=kept)


class AuxHead(Layer):
  """A second classifier on a middle cell, for training only.

  ReLU → average pool 5×5, stride 3, VALID → 1×1 conv to 51 → batch norm → ReLU → conv
  over the whole map to 307 → batch norm → ReLU → logits.
  `FProp(theta, x)`: [batch, side, side, input_channels] → [batch, num_classes].
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `side`, `input_channels` and `num_classes` are required."""
    p = super().Params()
    p.Define("side", 0, "Height and width of x.")
    p.Define("input_channels", 0, "Channels of x.")
    p.Define("num_classes", 0, "Number of classes.")
    p.Define("norm", BatchNorm.Params(), "Params of both batch norms.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    side = (check_count(self, p, "side", 5) - 5) // 3 + 1
    narrow, wide = _AUX_FILTERS
    convs = [
      conv_params((1, 1), p.input_channels, narrow, (1, 1)),
      conv_params((side, side), narrow, wide, (1, 1)).Set(padding="VALID"),
    ]
    self.pool: Layer
    self.chain: Layer
    self.logits: Layer
    self.CreateChild("pool", AvgPool.Params().Set(window=5, stride=3, padding="VALID"))
    self.CreateChild("chain", ConvChain.Params().Set(convs=convs, norm=p.norm))
    logits = Logits.Params().Set(input_channels=wide, num_classes=p.num_classes)
    self.CreateChild("logits", logits)

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Computes the logits."""
    (x,) = inputs
    x = self.pool.FProp(theta.pool, tf.nn.relu(x))
    x = tf.nn.relu(self.chain.FProp(theta.chain, x))
    return self.logits.FProp(theta.logits, tf.reshape(x, [x.shape[0], x.shape[3]]))

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost; both ReLUs' outputs and that of the pool are kept."""
    (x,) = inputs
    layer = params.Instantiate()
    pool = layer.pool.FPropMeta(layer.pool.params, x)
    chain = layer.chain.FPropMeta(layer.chain.params, pool.out_shapes)
    y = chain.out_shapes
    features = ArraySpec((y.shape[0], y.shape[3]), y.dtype)
    logits = layer.logits.FPropMeta(layer.logits.params, features)
    kept = x.bytes + pool.out_shapes.bytes + y.bytes
    return sum_costs(cls, params, [pool, chain, logits], logits.out_shapes, kept=kept)


class AuxCell(Cell):
  """A cell with the auxiliary head on its output.

  `FProp(theta, x, previous, side)` is that of `Cell`; in training the weighted loss of
  the head joins what is minimized.
  """

  SIDE_INPUTS = ClassifierLoss.SIDE_INPUTS

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params; `aux_head` must be set."""
    p = super().Params()
    p.Define("aux_head", AuxHead.Params(), "Params of the head.")
    p.Define("aux_loss", ClassifierLoss.Params(), "Params of its loss.")
    p.Define("aux_weight", 0.4, "Factor on its loss.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_number(self, params, "aux_weight", "(0, inf)")
    self.aux_head: AuxHead
    self.aux_loss: ClassifierLoss
    self.CreateChild("aux_head", params.aux_head)
    self.CreateChild("aux_loss", params.aux_loss)

  def FProp(self, theta: NestedMap, *inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the cell, and adds the loss of the head."""
    *maps, side = inputs
    y, x = super().FProp(theta, *maps)
    if not self.do_eval:
      logits = self.aux_head.FProp(theta.aux_head, y)
      loss, _ = self.aux_loss.loss(logits, side)
      self.AddLoss(self.params.aux_weight * loss)
    return y, x

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost of training."""
    *maps, side = inputs
    cell = super().FPropMeta(params, *maps)
    layer = params.Instantiate()
    head = layer.aux_head.FPropMeta(layer.aux_head.params, cell.out_shapes[0])
    loss = layer.aux_loss.FPropMeta(layer.aux_loss.params, head.out_shapes, side)
    return sum_costs(cls, params, [cell, head, loss], cell.out_shapes)
