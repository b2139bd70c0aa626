"""The position-wise feed-forward layer."""

from __future__ import annotations

from typing import Any

from tfpipe.checks import check_choice, check_count, check_number
from tfpipe.cost import ArraySpec, LayerCost
from tfpipe.layers import activation
from tfpipe.layers.base import Layer
from tfpipe.layers.linear import Linear
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams


class FeedForward(Layer):
  """`activation(x·w1 + b1)·w2 + b2`: [..., dim] → [..., hidden_dim] → [..., dim].

  Source: Vaswani et al., arXiv:1706.03762, section 3.3. Costs 4·dim·hidden_dim flops a
  position in its products.
  """

  hidden: Linear
  output: Linear

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params with defaults; dim and hidden_dim must be set."""
    p = super().Params()
    p.Define("dim", 0, "Size of the last dimension of input and output.")
    p.Define("hidden_dim", 0, "Size of the layer between.")
    p.Define("activation", "relu", "Activation of the layer between: relu or gelu.")
    p.Define("init_scale", 1.0, "Factor on the start values of both matrices (Xavier).")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    p = self.params
    dim = check_count(self, p, "dim", 1)
    hidden_dim = check_count(self, p, "hidden_dim", 1)
    check_choice(self, p, "activation", ("relu", "gelu"))
    check_number(self, p, "init_scale", "(0, inf)")
    linear = Linear.Params().Set(init_scale=p.init_scale)
    self.CreateChild(
      "hidden",
      linear.Copy().Set(in_dim=dim, out_dim=hidden_dim, activation=p.activation),
    )
    self.CreateChild("output", linear.Copy().Set(in_dim=hidden_dim, out_dim=dim))

  def FProp(self, theta: NestedMap, *inputs: Any) -> tf.Tensor:
    """Maps x [..., dim] to the same shape and dtype."""
    (x,) = inputs
    return self.output.FProp(theta.output, self.hidden.FProp(theta.hidden, x))

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost for one ArraySpec [..., dim]."""
    (x,) = inputs
    p = params
    if x.shape[-1] != p.dim:
      raise ValueError(f"{p.name}: dim={p.dim}, but the input is {x.shape}")
    hidden = ArraySpec((*x.shape[:-1], p.hidden_dim), x.dtype)
    # The output of relu is what the second product keeps, too.
    kept = {"relu": 1, "gelu": 3}[p.activation]
    return cls.Cost(
      p,
      x,
      flops=(1 + activation.FLOPS[p.activation]) * hidden.size + x.size,
      matmul_flops=4 * x.size * p.hidden_dim,
      activation_bytes=kept * hidden.bytes,
    )
