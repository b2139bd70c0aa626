"""Which layer is the first to give a number that is not finite.

A micro-batch is run again, layer by layer, with the functions of a pipeline in which
each layer is a cell of its own; so every number is that of the step that failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfpipe.lazy import tf
from tfpipe.packed import pack, unpack, variants
from tfpipe.pipeline.cell import Cell, flat_args, make_gradients
from tfpipe.structure import is_differentiable


class Found(NamedTuple):
  """Where a number is not finite.

  Attributes:
    layer: number of the layer.
    what: of it: "weights", "output" or "gradient".
  """

  layer: int
  what: str


class Probe:
  """Runs one micro-batch of training and looks at what each layer gives.

  Args:
    cells: of one layer each.
    devices: of each layer.
    weights: by name.
    part: specs of the fields of a micro-batch.
    trainable: names of the weights that learn.
    seed_keys: name of a seed → its key.
    input_fields: fields that enter the first layer.
  """

  def __init__(
    self,
    cells: Sequence[Cell],
    devices: Sequence[str],
    weights: Mapping[str, tf.Variable],
    part: Mapping[str, tf.TensorSpec],
    *,
    trainable: frozenset[str],
    seed_keys: Mapping[str, int],
    input_fields: Sequence[str],
  ) -> None:
    self._cells = cells
    self._devices = devices
    self._weights = weights
    self._seed_keys = seed_keys
    self._input_fields = input_fields
    self._gradients = make_gradients(cells, trainable, splits=False)
    scalar = tf.TensorSpec([], tf.int64)
    self._function = tf.function(self._run, autograph=False).get_concrete_function(
      dict(part), scalar, scalar
    )

  def find(self, part: Mapping[str, tf.Tensor], step: int, row: int) -> Found | None:
    """Gives the first place, in the order of computation; None if all is finite.

    Args:
      part: fields of the micro-batch.
      step: mini-batches seen before, for random numbers.
      row: number of the micro-batch's first row in the mini-batch.
    """
    numbers = (tf.constant(number, tf.int64) for number in (step, row))
    weights, outputs, gradients = self._function(dict(part), *numbers).numpy().tolist()
    for kind, flags in (("weights", weights), ("output", outputs)):
      if False in flags:
        return Found(flags.index(False), kind)
    if False in gradients:
      return Found(len(gradients) - 1 - gradients[::-1].index(False), "gradient")
    return None

  def _run(
    self, part: dict[str, tf.Tensor], step: tf.Tensor, row: tf.Tensor
  ) -> tf.Tensor:
    """Gives whether weights, outputs and gradients of each layer are finite."""
    weights, outputs, calls = [], [], []
    token = step
    inputs = [part[name] for name in self._input_fields]
    for cell, gradient, device in zip(
      self._cells, self._gradients, self._devices, strict=True
    ):
      with tf.device(device):
        own = [self._weights[name].read_value() for name in cell.weight_names()]
        theta = [pack(own)] if own else []
        keys = [self._seed_keys[name] for name in cell.seed_names()]
        randomness = (tf.constant(keys, tf.int64), step, row)
        side = {name: part[name] for name in cell.side}
        args = flat_args(theta, randomness, inputs, side)
        with tf.name_scope(f"probe{len(calls)}/forward"):
          found, token = gradient.forward(args, token)
        given = cell.function.outputs(found)
        moments = _unpacked(given.moments, cell.function.moment_specs)
        weights.append(_finite(own))
        outputs.append(_finite([*given.tensors, *given.losses, *moments]))
        calls.append([*args, *found[cell.function.num_outputs :]])
        inputs = given.tensors
    gradients, dys = [], []
    for gradient, device, values in zip(
      self._gradients[::-1], self._devices[::-1], calls[::-1], strict=True
    ):
      with tf.device(device):
        with tf.name_scope(f"probe{len(calls) - len(gradients) - 1}/backward"):
          found, token = gradient.backward([*values, *dys], token)
        dys = found[: gradient.num_dxs]
        layers = variants(len(gradient.summed))
        by_layer = _unpacked(found[gradient.num_dxs :], layers)
        pairs = zip(by_layer, gradient.summed, strict=True)
        dweights = [tensor for pair in pairs for tensor in unpack(*pair)]
        gradients.append(_finite([*dys, *dweights]))
    return tf.stack([tf.stack(flags) for flags in (weights, outputs, gradients[::-1])])


def _unpacked(
  bundle: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec]
) -> list[tf.Tensor]:
  """Gives what is in a bundle, if there is one."""
  return unpack(bundle[0], specs) if bundle else []


def _finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Says whether every number is finite: a bool scalar."""
  own = [tensor for tensor in tensors if is_differentiable(tensor)]
  flags = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in own]
  return tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)
