"""The base of all layers: Params → weights, a pure FProp, and its cost.

A layer is declared, not allocated: constructing one touches no device and imports no
TensorFlow. It *lists* its weights; whoever runs it creates the variables where they
belong and hands their values to `FProp(theta, ...)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfpipe.cost import LayerCost
from tfpipe.layers.weight_init import WeightInit
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

# Names of layers, children, weights and seeds: joined by "/", they must stay apart.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class WeightParams:
  """A weight to be created.

  Attributes:
    shape: its shape, whole numbers from 0 on; weights are float32.
    init: its start value.
    trainable: False for moving statistics and frozen weights.
    l2: whether the L2 term of the loss counts it (kernels: yes; biases, norms: no).
    tied_to: global name of a weight that this one is, instead of a new one.
    stays_float32: whether FProp gets it in float32 even if it computes in another
      dtype: what belongs to norms, and tables of which a few rows are read.
  """

  shape: tuple[int, ...]
  init: WeightInit = dataclasses.field(default_factory=WeightInit.Xavier)
  trainable: bool = True
  l2: bool = False
  tied_to: str = ""
  stays_float32: bool = False

  def __post_init__(self) -> None:
    """Refuses, by a ValueError, what is no shape or no start value."""
    if not isinstance(self.shape, (list, tuple)):
      raise ValueError(f"the shape of a weight is {self.shape!r}: must be a tuple")
    for size in self.shape:
      if not isinstance(size, numbers.Integral) or isinstance(size, bool) or size < 0:
        raise ValueError(
          f"the shape of a weight is {self.shape!r}: {size!r} must be a whole number, "
          "at least 0"
        )
    if not isinstance(self.init, WeightInit):
      raise ValueError(
        f"the start value of a weight is {self.init!r}: must be a WeightInit"
      )
    # Equal shapes are equal tuples.
    object.__setattr__(self, "shape", tuple(map(int, self.shape)))


class Layer:
  """A function of (theta, inputs) with declared weights.

  Subclasses declare children, weights and seeds in `__init__`, and define `FProp` and
  `FPropMeta`. `theta` mirrors the tree of children: `theta.child.w`; a list of children
  is a list there.

  Attributes:
    params: a copy of its Params.
    path: its place in the tree, below the layer that a pipeline has.
    compute_dtype: a pipeline's own; theta and inputs enter FProp in it, see
      `pipeline.mixed_precision`.
  """

  # Whether the gradients of the weights are computed apart from those of the inputs,
  # for schedules that split the backward; a plan says which layers do not.
  SPLITS_BACKWARD = True

  # Fields of the batch that FProp gets as NestedMap `side`, after its other inputs.
  SIDE_INPUTS: tuple[str, ...] = ()

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of this layer with its defaults."""
    p = InstantiableParams(cls)
    p.Define("name", "", "Name of the layer; part of the names of its weights.")
    p.Define("trainable", True, "Whether the weights of this layer are trained.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    self.params = params.Copy()
    self.path = ""
    self.compute_dtype = "float32"
    self._children: dict[str, Layer | list[Layer]] = {}
    self._weights: dict[str, WeightParams] = {}
    self._seeds: list[str] = []
    self._names: set[str] = set()

  @property
  def name(self) -> str:
    """Name from Params.

    Raises:
      AttributeError: FProp asks for it.
    """
    if "name" not in self.params:
      raise AttributeError(
        f"{type(self).__name__}.FProp reads the name of its layer. Layers that are "
        "equal but for the name share one trace; give what differs a field of the "
        "Params"
      )
    return self.params.name

  @property
  def do_eval(self) -> bool:
    """Whether FProp is traced for evaluation (no dropout, moving statistics)."""
    return _Mode.do_eval

  def CreateChild(self, name: str, params: InstantiableParams) -> None:
    """Adds the child layer `self.<name>` (Lingvo)."""
    self._claim(name, attribute=True)
    self._children[name] = self._Child(name, params)
    setattr(self, name, self._children[name])

  def CreateChildren(self, name: str, params: Sequence[InstantiableParams]) -> None:
    """Adds the list of child layers `self.<name>`; weights are `<name>_<i>/...`."""
    self._claim(name, attribute=True)
    names = [f"{name}_{i}" for i in range(len(params))]
    for own in names:
      self._claim(own)
    self._children[name] = list(map(self._Child, names, params))
    setattr(self, name, self._children[name])

  def _claim(self, name: str, *, attribute: bool = False) -> None:
    """Takes a name for a child, weight or seed; each is part of global names.

    Args:
      name: to be taken.
      attribute: whether the layer gets an attribute of that name.
    """
    taken = name in self._names or (attribute and hasattr(self, name))
    if not NAME.fullmatch(name) or taken:
      raise ValueError(
        f"{type(self).__name__} {self.name!r}: the name {name!r} of a child, weight or "
        "seed must be of letters, digits and _, and not be taken yet"
      )
    self._names.add(name)

  def _Child(self, name: str, params: InstantiableParams) -> Layer:
    params = params.Copy().Set(name=name)
    if not self.params.trainable:
      params.trainable = False
    child = params.Instantiate()
    child.set_path(name)
    return child

  def set_path(self, path: str) -> None:
    """Prefixes the paths of this layer and of all below it."""
    self.path = f"{path}/{self.path}" if self.path else path
    for child in self.children():
      child.set_path(path)

  def CreateVariable(self, name: str, weight: WeightParams) -> None:
    """Declares the weight `theta.<name>` (Lingvo)."""
    self._claim(name)
    if not self.params.trainable:
      weight = dataclasses.replace(weight, trainable=False)
    self._weights[name] = weight

  def CreateSeed(self, name: str = "seed") -> None:
    """Declares `theta.<name>`, the int64 [3] seed that `rng.uniform` takes."""
    self._claim(name)
    self._seeds.append(name)

  def children(self) -> Iterator[Layer]:
    """Walks the direct children in order of declaration."""
    for child in self._children.values():
      yield from child if isinstance(child, list) else (child,)

  def state(self) -> dict[str, Any]:
    """What a subclass has set on this layer itself, beside what is declared."""
    own = {"params", "path", "_children", "_weights", "_seeds", "_names"}
    return {n: v for n, v in vars(self).items() if n not in {*own, *self._children}}

  def weights(self) -> dict[str, WeightParams]:
    """Lists all weights of the tree: path relative to this layer → declaration."""
    found = dict(self._weights)
    for child in self.children():
      for path, weight in child.weights().items():
        found[f"{child.name}/{path}"] = weight
    return found

  def seeds(self) -> list[str]:
    """Lists the seeds of the tree by path."""
    found = list(self._seeds)
    for child in self.children():
      found += [f"{child.name}/{path}" for path in child.seeds()]
    return found

  def Theta(self, values: Mapping[str, Any]) -> NestedMap:
    """Arranges values by path (of `weights()` and `seeds()`) as the tree of FProp."""
    theta = NestedMap()
    for name in [*self._weights, *self._seeds]:
      theta[name] = values[name]
    for name, child in self._children.items():
      if isinstance(child, list):
        theta[name] = [c.Theta(_below(values, c.name)) for c in child]
      else:
        theta[name] = child.Theta(_below(values, child.name))
    return theta

  def FProp(self, theta: NestedMap, *inputs: Any) -> Any:
    """Computes the layer: a pure function of theta and inputs.

    Equal layers share one trace, so the name of the layer is not to be had here.
    """
    raise NotImplementedError(f"{type(self).__name__} does not define FProp")

  def Predict(self, theta: NestedMap, *inputs: Any) -> NestedMap:
    """Gives what a network predicts, of its last layer: FProp without labels.

    What is exported and decoded; a network that is only trained needs none.

    Args:
      theta: as of FProp.
      *inputs: those of FProp but for `side`.

    Returns:
      tensors [batch, ...] by name; `logits` among them if they are to be decoded.
    """
    raise NotImplementedError(f"{type(self).__name__} does not define Predict")

  @classmethod
  def FPropMeta(cls, params: InstantiableParams, *inputs: Any) -> LayerCost:
    """Gives the cost of FProp for inputs of these ArraySpecs, without TensorFlow."""
    raise NotImplementedError(f"{cls.__name__} does not define FPropMeta")

  @classmethod
  def Cost(
    cls,
    params: InstantiableParams,
    out_shapes: Any,
    *,
    flops: int = 0,
    matmul_flops: int = 0,
    activation_bytes: int = 0,
  ) -> LayerCost:
    """Makes the LayerCost of this layer; parameters are counted from its weights.

    `flops` are those besides the products and convolutions of `matmul_flops`.
    """
    own = [w for w in params.Instantiate().weights().values() if not w.tied_to]
    count = sum(_size(weight.shape) for weight in own if weight.trainable)
    stored = sum(_size(weight.shape) for weight in own)
    return LayerCost(
      name=params.name,
      flops=flops + matmul_flops,
      matmul_flops=matmul_flops,
      param_count=count,
      param_bytes=4 * stored,
      activation_bytes=activation_bytes,
      out_shapes=out_shapes,
    )

  def AddMoments(self, mean: tf.Tensor, variance: tf.Tensor, decay: float) -> None:
    """Hands out a micro-batch's moments, float32.

    The weights `moving_mean` and `moving_variance` of this layer step once per
    mini-batch, with the moments pooled over its micro-batches.
    """
    if mean.dtype != tf.float32 or variance.dtype != tf.float32:
      raise ValueError(
        f"{self._own_name()}: moments must be float32; got "
        f"{mean.dtype.name} and {variance.dtype.name}"
      )
    if _Mode.aux is not None:
      if self.path in _Mode.aux.moments:
        raise ValueError(
          f"{self._own_name()} hands out moments twice in one FProp; "
          "its moving statistics can follow one input only"
        )
      _Mode.aux.moments[self.path] = Moments(mean, variance, decay)

  def _own_name(self) -> str:
    """Gives its class, and where it is in the layer that it is a child of."""
    name = type(self).__name__
    return f"{name} {self.path!r}" if self.path else name

  def AddLoss(self, loss_sum: tf.Tensor) -> None:
    """Adds a loss of this micro-batch, summed over examples, to what is minimized."""
    if loss_sum.shape.rank != 0 or loss_sum.dtype != tf.float32:
      raise ValueError(
        f"{self._own_name()}: a loss must be a float32 scalar, the "
        f"sum over the examples; got shape {loss_sum.shape}, {loss_sum.dtype.name}"
      )
    if _Mode.aux is not None:
      _Mode.aux.losses.append(loss_sum)


def _below(values: Mapping[str, Any], name: str) -> dict[str, Any]:
  prefix = name + "/"
  return {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}


def _size(shape: Sequence[int]) -> int:
  size = 1
  for dim in shape:
    size *= dim
  return size


class Moments(NamedTuple):
  """Mean and variance over a micro-batch, and the decay of their moving averages."""

  mean: tf.Tensor
  variance: tf.Tensor
  decay: float


@dataclasses.dataclass
class Aux:
  """What layers hand out beside their outputs while a function is traced."""

  moments: dict[str, Moments] = dataclasses.field(default_factory=dict)
  losses: list[tf.Tensor] = dataclasses.field(default_factory=list)


class _Mode:
  do_eval: bool = False
  aux: Aux | None = None


@contextlib.contextmanager
def tracing(*, do_eval: bool) -> Iterator[Aux]:
  """Sets the mode of FProp inside and collects what layers hand out."""
  before = (_Mode.do_eval, _Mode.aux)
  aux = Aux()
  _Mode.do_eval, _Mode.aux = do_eval, aux
  try:
    yield aux
  finally:
    _Mode.do_eval, _Mode.aux = before
