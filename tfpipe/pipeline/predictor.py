"""A trained network on one device: what it predicts, as a function of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfpipe.layers.base import Layer, tracing
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.pipeline import mixed_precision
from tfpipe.structure import Structure, static_shape

Fields = Mapping[str, "tf.Tensor"]


def check_predicts(layer: Layer) -> None:
  """Refuses a last layer that does not say what it predicts.

  Raises:
    ValueError: it defines no `Predict`.
  """
  if type(layer).Predict is Layer.Predict:
    raise ValueError(
      f"the last layer, {layer.name!r}, says nothing of what it predicts: "
      f"{type(layer).__name__} must define Predict(self, theta, *inputs), which gives "
      "a NestedMap of tensors [batch, ...] such as logits"
    )


class Predictor:
  """The layers of a network, one after the other, in evaluation mode.

  Layers have static shapes, so a call takes the rows of one micro-batch; `any_rows`
  takes as many as there are, in groups of that size.

  Attributes:
    fields: names of the batch fields that the predictions depend on.
    rows: of a micro-batch.

  Args:
    layers: of the network; the last one defines `Predict`.
    input_fields: batch fields that enter the first layer.
    specs: of the fields of a micro-batch.
    weights: global name → variable.

  Raises:
    ValueError: the last layer predicts nothing, or not a row for each example.
  """

  def __init__(
    self,
    layers: Sequence[Layer],
    input_fields: Sequence[str],
    specs: Mapping[str, tf.TensorSpec],
    weights: Mapping[str, tf.Variable],
  ) -> None:
    check_predicts(layers[-1])
    self._layers = layers
    self._input_fields = tuple(input_fields)
    self._weights = weights
    self._specs = specs
    self.rows = static_shape(next(iter(specs.values())))[0]
    traced = tf.function(self._predict, autograph=False).get_concrete_function(
      dict(specs)
    )
    self._out_specs = {
      name: tf.TensorSpec(tensor.shape, tensor.dtype)
      for name, tensor in traced.structured_outputs.items()
    }
    self._check_rows()
    reached = _reached(traced.outputs)
    given = dict(zip(sorted(specs), traced.inputs, strict=False))  # tf.nest's order
    self.fields = [name for name in specs if given[name].op.name in reached]

  def predict(self, batch: Fields) -> dict[str, tf.Tensor]:
    """Gives the predictions for a micro-batch of `fields`, by name."""
    return self._predict(batch)

  def metrics(self, batch: Fields) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Gives the metrics of a micro-batch of all fields, name → (sum, weight).

    Losses that layers add are part of `loss`, as in evaluation.
    """
    last = self._layers[-1]
    with tracing(do_eval=True) as aux:
      inputs = (*self._inside(batch), *_side(last, batch))
      with mixed_precision.naming(last):
        metrics = dict(last.FProp(self._theta(last), *inputs))
    total, weight = metrics["loss"]
    return {**metrics, "loss": (tf.add_n([total, *aux.losses]), weight)}

  def any_rows(self, batch: Fields) -> dict[str, tf.Tensor]:
    """Gives the predictions for any number of rows.

    The last group is filled up with rows of zeros, whose predictions are left out.
    """
    count = tf.shape(next(iter(batch.values())))[0]
    groups = -(-count // self.rows)

    def group(values: tf.Tensor) -> tf.Tensor:
      fill = [[0, groups * self.rows - count], *[[0, 0]] * (values.shape.rank - 1)]
      return tf.reshape(
        tf.pad(values, fill), [groups, self.rows, *values.shape.as_list()[1:]]
      )

    found: Any = tf.map_fn(
      self.predict,
      {name: group(values) for name, values in batch.items()},
      fn_output_signature=self._out_specs,
    )
    return {
      name: tf.reshape(values, [-1, *values.shape.as_list()[2:]])[:count]
      for name, values in found.items()
    }

  def _predict(self, batch: Fields) -> dict[str, tf.Tensor]:
    last = self._layers[-1]
    with tracing(do_eval=True):
      inputs = self._inside(batch)
      with mixed_precision.naming(last):
        return dict(last.Predict(self._theta(last), *inputs))

  def _inside(self, batch: Fields) -> tuple:
    """Computes what enters the last layer."""
    nest: Any = tuple(batch[name] for name in self._input_fields)
    for layer in self._layers[:-1]:
      inputs = (*_cast(layer, nest), *_side(layer, batch))
      with mixed_precision.naming(layer):
        nest = layer.FProp(self._theta(layer), *inputs)
      nest = _cast(layer, nest if isinstance(nest, tuple) else (nest,))
    return _cast(self._layers[-1], nest)

  def _theta(self, layer: Layer) -> NestedMap:
    values: dict[str, tf.Tensor] = {
      path: self._weights[w.tied_to or f"{layer.name}/{path}"].read_value()
      for path, w in layer.weights().items()
    }
    values = mixed_precision.theta(layer, values)
    # Nothing is random in evaluation.
    values |= {path: tf.zeros([3], tf.int64) for path in layer.seeds()}
    return layer.Theta(values)

  def _check_rows(self) -> None:
    for name, spec in self._out_specs.items():
      if not spec.shape.rank or static_shape(spec)[0] != self.rows:
        layer = self._layers[-1]
        raise ValueError(
          f"{type(layer).__name__}.Predict of layer {layer.name!r} gives {name!r} of "
          f"shape {spec.shape} for {self.rows} examples: must be a row for each"
        )


def _cast(layer: Layer, nest: Any) -> Any:
  """Casts what enters or leaves a layer to what it computes in."""
  structure, tensors = Structure.split(nest)
  return structure.pack(mixed_precision.border(layer, tensors))


def _side(layer: Layer, batch: Fields) -> tuple[NestedMap, ...]:
  """Gives the argument `side` if the layer has one.

  What it does not read in evaluation, as labels, need not be there.
  """
  if not layer.SIDE_INPUTS:
    return ()
  return (NestedMap({n: batch[n] for n in layer.SIDE_INPUTS if n in batch}),)


def _reached(tensors: Iterable[tf.Tensor]) -> set[str]:
  """Names of the operations that some tensors depend on."""
  todo = [tensor.op for tensor in tensors]
  seen: set[str] = set()
  while todo:
    op = todo.pop()
    if op.name not in seen:
      seen.add(op.name)
      todo += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
  return seen
