"""Times every layer of a network on a device: forward, both gradients, update.

A layer is timed as a cell of its own, by the functions that training calls, fed with
what it gets in the first step: the real output of the layer before and the real
gradient of the layer behind. The call of a function from Python takes as long as a
small layer, so a `Chain` calls it many times within one graph, and what the chain
itself takes is measured and subtracted.

The gradients are timed behind their forward, and are what that takes longer than the
forward alone: TensorFlow picks kernels for a graph as a whole, and for the gradient of
a pooling, say, one that is many times as fast if the pooling is there too.

A layer that is called over and over finds its weights and buffers in the cache, as it
does not in a network. So all layers are timed once more as one cell, and each layer's
times are scaled to add up to those of the cell.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TypeAlias

from tfpipe.input.base import Input
from tfpipe.layer_times import LayerTime, LayerTimes
from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline import placement
from tfpipe.pipeline.call import Execution
from tfpipe.pipeline.cell import Cell, flat_args, make_cells, make_gradients
from tfpipe.pipeline.cell_function import CellCall, Sums
from tfpipe.pipeline.cell_gradient import CellGradient
from tfpipe.pipeline.micro_batch import micro_batch_size, split
from tfpipe.pipeline.pipeline import declared_weights
from tfpipe.program.chain import Call, Chain, Clock, call_secs
from tfpipe.structure import static_shape

Chains: TypeAlias = "list[Chain | None]"
"""F; F and B; F, B and W; F and both gradients at once. None: as without the last."""


@dataclasses.dataclass(frozen=True)
class Profile:
  """What was measured, for one micro-batch.

  Attributes:
    times: of each layer, scaled to add up to `whole`.
    border_bytes: of what each layer hands on.
    num_timed: layers that were timed; the others equal one of them.
    alone: seconds of F, B, W, and of one function that gives both gradients: the sums
      over the layers, each timed alone.
    whole: the same of all layers as one cell.
  """

  times: LayerTimes
  border_bytes: tuple[int, ...]
  num_timed: int
  alone: tuple[float, ...]
  whole: tuple[float, ...]


def profile(params: Params, device: str, clock: Clock = time.perf_counter) -> Profile:
  """Times the layers of a run on a device.

  With several micro-batches, the weight gradient includes its addition to the sum. The
  forward is one that keeps all that the gradients read, whatever `pipeline.remat` is.

  Args:
    params: of the run; of `pipeline`, only `num_micro_batches` and `xla` matter.
    device: its full name.
    clock: gives seconds.

  Raises:
    ValueError, LookupError: the Params are not allowed, or the data is not there.
  """
  placement.keep_bits()  # as a run does: other options make other graphs
  subject = _Subject(params, device)
  count = len(subject.layers)
  cells, of_layers = subject.chains([(i, i + 1) for i in range(count)])
  _, of_whole = subject.chains([(0, count)])
  update = subject.update_chain(params)
  *found, whole, (update_secs, *_) = _secs(
    [*of_layers, *of_whole, [update, None, None, None]], device, clock
  )
  alone = [sum(column) for column in zip(*found, strict=True)]
  factors = [a / b if b else 1.0 for a, b in zip(whole, alone, strict=True)]
  layers = []
  for layer, share, times in zip(subject.layers, subject.shares(), found, strict=True):
    scaled = [a * b for a, b in zip(factors, times, strict=True)]
    layers.append(LayerTime(layer.name, *scaled[:3], update=share * update_secs))
  return Profile(
    times=LayerTimes(describe(device), subject.rows, tuple(layers)),
    border_bytes=tuple(map(_border_bytes, cells)),
    num_timed=len(set(map(id, of_layers))),
    alone=tuple(alone),
    whole=tuple(whole),
  )


def _secs(parts: Sequence[Chains], device: str, clock: Clock) -> list[list[float]]:
  """Measures each chain once; gives F, B, W and both gradients at once."""
  chains = list(dict.fromkeys(c for part in parts for c in part if c is not None))
  found = dict(zip(chains, call_secs(chains, device, clock), strict=True))
  rows = []
  for forward, with_b, with_w, at_once in parts:
    f = found[forward] if forward else 0.0
    b = found[with_b] if with_b else f
    w = found[with_w] if with_w else b
    both = found[at_once] if at_once else f
    rows.append([f, max(0.0, b - f), max(0.0, w - b), max(0.0, both - f)])
  return rows


def describe(device: str) -> str:
  """Says what a device is: its name, its make if known, and its threads."""
  name = device.rpartition("device:")[2]
  if not name.startswith("CPU"):
    physical = next(iter(tf.config.list_physical_devices(name.partition(":")[0])))
    make = tf.config.experimental.get_device_details(physical).get("device_name")
    return f"{name}, {make}" if make else name
  threads = tf.config.threading.get_intra_op_parallelism_threads()
  return f"{name}, {threads or 'all'} thread{'' if threads == 1 else 's'}"


class _Subject:
  """A network, its weights and its first micro-batch on a device.

  Attributes:
    layers: in order.
    rows: of the micro-batch.
  """

  def __init__(self, params: Params, device: str) -> None:
    task = params.task.Instantiate()
    self._device = device
    self._fields = task.INPUT_FIELDS
    self.layers = [layer.Instantiate() for layer in task.Layers()]
    number = params.pipeline.num_micro_batches
    self._adds = number > 1
    self._execution = Execution(
      serial=params.pipeline.intra_op_threads == 1, xla=params.pipeline.xla
    )
    source: Input = params.input.Instantiate()
    self.rows = micro_batch_size(source.params.batch_size, number)
    batch = next(iter(source.dataset()))
    declared = declared_weights(self.layers)
    self._trainable = {name for name, w in declared.items() if w.trainable}
    with tf.device(device):
      self._micro_batch = split(batch, number)[0]
      self._weights = {
        name: weight.init.values(name, weight.shape, params.train.seed)
        for name, weight in declared.items()
      }

  def chains(
    self, ranges: Sequence[tuple[int, int]]
  ) -> tuple[list[Cell], list[Chains]]:
    """Makes the chains of each cell of a cut.

    Returns:
      the cells; their chains, the same list for equal cells.
    """
    specs = {n: tf.TensorSpec(t.shape, t.dtype) for n, t in self._micro_batch.items()}
    inputs = [specs[name] for name in self._fields]
    cells = make_cells(
      self.layers,
      ranges,
      tuple(inputs) if len(inputs) > 1 else inputs[0],
      specs,
      execution=self._execution,
    )
    gradients = make_gradients(cells, self._trainable)
    known: dict[CellGradient, Chains] = {}
    chains: list[Chains] = []
    dys: list[tf.Tensor] = []
    with tf.device(self._device):
      args = self._forward(cells)
      for cell, gradient in zip(cells[::-1], gradients[::-1], strict=True):
        values = args.pop()
        kept = _call(gradient.forward, values)[cell.function.num_outputs :]
        found = _call(gradient.input_gradient, [*values, *kept, *dys])
        if gradient not in known:
          known[gradient] = self._parts(
            gradient, cell.function.num_outputs, values, dys, has_b=bool(found)
          )
        chains.append(known[gradient])
        dys = found[: gradient.num_dxs]
    return cells, chains[::-1]

  def _forward(self, cells: Sequence[Cell]) -> list[list[tf.Tensor]]:
    """Runs the cells; gives the arguments of each."""
    tensors = [self._micro_batch[name] for name in self._fields]
    args = []
    for cell in cells:
      weights = [self._weights[name] for name in cell.weight_names()]
      keys, zero = (tf.zeros(n, tf.int64) for n in ([len(cell.seed_names())], []))
      side = {name: self._micro_batch[name] for name in cell.side}
      args.append(flat_args(weights, (keys, zero, zero), tensors, side))
      tensors = cell.function.outputs(_call(cell.function.forward, args[-1])).tensors
    return args

  def _parts(
    self,
    gradient: CellGradient,
    num_outputs: int,
    args: Sequence[tf.Tensor],
    dys: Sequence[tf.Tensor],
    *,
    has_b: bool,
  ) -> Chains:
    """Makes the chains of a cell; arguments as of `_Calls`."""
    weights = gradient.weights
    sums = [tf.zeros_like(args[place]) for place in weights if self._adds]
    calls = _Calls(gradient, num_outputs, len(args), len(dys))

    def chain(call: Call) -> Chain:
      return Chain(call, [*args, *dys, *sums], device=self._device)

    return [
      chain(calls.forward),
      chain(calls.input_gradient) if has_b else None,
      chain(calls.apart) if weights else None,
      chain(calls.at_once) if has_b or weights else None,
    ]

  def update_chain(self, params: Params) -> Chain:
    """Makes the chain of updates of all weights."""
    learner = params.task.learner.Instantiate()
    declared = declared_weights(self.layers)
    names = sorted(self._trainable)
    with tf.device(self._device):
      weights = {name: tf.Variable(self._weights[name]) for name in names}
      gradients = [tf.fill(declared[name].shape, 1e-3) for name in names]
      learner.create_state(weights, [name for name in names if declared[name].l2])

    def update(sums: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      report = learner.apply(dict(zip(names, sums, strict=True)), tf.ones([]))
      return tf.nest.flatten(report)

    return Chain(update, gradients, device=self._device)

  def shares(self) -> list[float]:
    """Gives each layer's part of the trained weights."""
    sizes = [
      sum(math.prod(w.shape) for w in declared_weights([layer]).values() if w.trainable)
      for layer in self.layers
    ]
    return [size / sum(sizes) for size in sizes]


class _Calls:
  """What training computes of a micro-batch in a cell, as the pipeline orders it.

  The values that each takes are a forward's arguments, upstream gradients, and sums of
  weight gradients if they are added up.
  """

  def __init__(
    self, gradient: CellGradient, num_outputs: int, num_args: int, num_dys: int
  ) -> None:
    self._gradient = gradient
    self._num_outputs = num_outputs
    self._num_args = num_args
    self._num_dys = num_dys

  def forward(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Computes F."""
    return _call(self._gradient.forward, values[: self._num_args])

  def input_gradient(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Computes F and B."""
    outputs, known = self._begin(values)
    return [*outputs, *_call(self._gradient.input_gradient, known)]

  def apart(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Computes F, B and W."""
    outputs, known = self._begin(values)
    found = _call(self._gradient.input_gradient, known)
    count = self._gradient.num_dxs
    dxs, carried = found[:count], found[count:]
    known = _after(found or outputs, [*known, *carried])
    dweights = _call(self._gradient.weight_gradient, known, self._sums(values))
    return [*outputs, *dxs, *dweights]

  def at_once(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Computes F, and both gradients by one function."""
    outputs, known = self._begin(values)
    return [*outputs, *_call(self._gradient.backward, known, self._sums(values))]

  def _begin(
    self, values: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Computes F; gives its outputs, and what the gradients are computed from."""
    flat = self.forward(values)
    outputs, kept = flat[: self._num_outputs], flat[self._num_outputs :]
    args = values[: self._num_args]
    dys = values[self._num_args :][: self._num_dys]
    return outputs, [*args, *kept, *_after(outputs, dys)]

  def _sums(self, values: Sequence[tf.Tensor]) -> Sums:
    return list(values[self._num_args + self._num_dys :]) or None


def _call(
  function: CellCall, values: Sequence[tf.Tensor], sums: Sums = None
) -> list[tf.Tensor]:
  """Calls a function of a cell at once."""
  return function(values, tf.zeros([], tf.int64), sums)[0]


def _after(done: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Hands tensors on when others are there, as the builder of a step does."""
  with tf.control_dependencies([tf.identity(tensor) for tensor in done]):
    return [tf.identity(tensor) for tensor in tensors]


def _border_bytes(cell: Cell) -> int:
  specs = tf.nest.flatten(cell.function.out_specs)
  tensors = [spec for spec in specs if isinstance(spec, tf.TensorSpec)]
  return sum(math.prod(static_shape(spec)) * spec.dtype.size for spec in tensors)
