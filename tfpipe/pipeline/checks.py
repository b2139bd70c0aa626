"""What a pipeline refuses before it makes a variable or traces a function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tfpipe import tied_weights
from tfpipe.layers.base import NAME, Layer
from tfpipe.lazy import tf
from tfpipe.pipeline.placement import existing
from tfpipe.schedule import validate
from tfpipe.schedule.schedule import Schedule
from tfpipe.spelling import nearest


def check_strategy() -> None:
  """Refuses to run under `tf.distribute`.

  Raises:
    ValueError: a strategy is in scope. MirroredStrategy, for one, puts variables on its
      own devices, whatever tf.device says, and stages would no longer own theirs.
  """
  if tf.distribute.has_strategy():
    name = type(tf.distribute.get_strategy()).__name__
    raise ValueError(
      f"a pipeline places its stages itself and cannot be made under {name}; make it "
      "outside of strategy.scope(), or train without a pipeline"
    )


def check_devices(devices: Sequence[str], schedule: Schedule) -> None:
  """Checks that there is a device for each list of a schedule.

  Raises:
    ValueError: too few or too many, or one that does not exist.
  """
  if len(devices) != schedule.num_devices:
    raise ValueError(
      f"{len(devices)} devices are given, schedule {schedule.name} needs "
      f"{schedule.num_devices}. To put several stages on one device, name it several "
      "times"
    )
  for name in devices:
    existing(name)


def check_schedule(schedule: Schedule, num_cells: int) -> None:
  """Checks that a schedule is sound, fits the cells and can be built.

  Raises:
    ValueError: as `schedule.validate`; another number of stages; or several updates.
  """
  validate(schedule)
  if schedule.num_stages != num_cells:
    raise ValueError(
      f"schedule {schedule.name} has {schedule.num_stages} stages, the network is cut "
      f"into {num_cells} cells"
    )
  if schedule.num_updates > 1:
    raise ValueError(
      f"schedule {schedule.name} has {schedule.num_updates} updates; one can be built"
    )


def check_layers(layers: Sequence[Layer], ranges: Sequence[tuple[int, int]]) -> None:
  """Checks the names of layers, what is tied, and that the cells hold every layer once.

  Raises:
    ValueError: a layer without a name or with another's, a cell that is empty or does
      not begin where the one before ends, or a tied weight that does not exist or fit.
  """
  ends = [0, *(end for _, end in ranges)]
  starts = [start for start, _ in ranges]
  if starts != ends[:-1] or ends[-1] != len(layers) or len(set(ends)) < len(ends):
    raise ValueError(
      f"ranges={ranges!r}: must hold each of the {len(layers)} layers once, in order, "
      "at least one in a cell"
    )
  names = [layer.name for layer in layers]
  for place, name in enumerate(names):
    if not NAME.fullmatch(name) or name in names[:place]:
      raise ValueError(
        f"layer {place} has the name {name!r}: every layer needs one of its own, of "
        "letters, digits and _"
      )
  tied_weights.check({layer.name: layer.weights() for layer in layers})


def check_fields(
  batch: Mapping[str, tf.TensorSpec],
  layers: Sequence[Layer],
  input_fields: Collection[str],
) -> None:
  """Checks that a batch has what the layers read, with equal numbers of rows.

  Raises:
    ValueError: naming the field.
  """
  readers = [(f"layer {layer.name!r}", layer.SIDE_INPUTS) for layer in layers]
  for reader, fields in [("input_fields", input_fields), *readers]:
    for field in fields:
      if field not in batch:
        raise ValueError(
          f"{reader} reads the field {field!r}, which the batch does not have"
          f"{nearest(field, batch)}"
        )
  first = next(iter(batch))
  for name, spec in batch.items():
    if not spec.shape.rank or not spec.shape.is_fully_defined():
      raise ValueError(
        f"field {name!r} has shape {spec.shape}: its dimensions must be known, the "
        "first being the examples"
      )
    if spec.shape[0] != batch[first].shape[0]:
      raise ValueError(
        f"field {name!r} has {spec.shape[0]} examples, {first!r} has "
        f"{batch[first].shape[0]}"
      )


def check_metrics(metrics: object, layer: str) -> None:
  """Checks what the last layer gives, as specs: name → (sum, weight), with `loss`.

  Args:
    metrics: what it gives.
    layer: its name.

  Raises:
    ValueError: it is no dict with `loss`, or one of its values is no pair of float32
      scalars.
  """
  if not isinstance(metrics, Mapping) or "loss" not in metrics:
    raise ValueError(
      f"the last layer, {layer!r}, must return a NestedMap of metrics with 'loss' "
      f"among them; got {metrics!r}"
    )
  for name, pair in metrics.items():
    specs = pair if isinstance(pair, tuple) else ()
    scalars = [s for s in specs if isinstance(s, tf.TensorSpec) and s.shape.rank == 0]
    if len(specs) != 2 or [s.dtype for s in scalars] != [tf.float32] * 2:
      raise ValueError(
        f"layer {layer!r}: metric {name!r} must be a pair (sum, weight) of float32 "
        f"scalars; got {pair!r}"
      )


def check_pure(graph: tf.Graph, layer: Layer) -> None:
  """Checks that the function of a layer has no state: FProp is a function of theta.

  Raises:
    ValueError: an op draws stateful random numbers, reads or writes a variable, prints
      or calls Python. A recomputation would give something else, or do it twice.
  """
  for op in graph.get_operations():
    if op.op_def.is_stateful and op.type not in _STATEFUL_CONTROL_FLOW:
      raise ValueError(
        f"layer {layer.name}: op {op.name} ({op.type}) has state; FProp and its "
        "gradient must be functions of theta and the inputs, without variables, "
        "assertions, prints or Python calls. Random numbers come from rng.uniform and "
        "CreateSeed"
      )


def check_undecided(graph: tf.Graph, layer: Layer) -> None:
  """Checks that a layer leaves it to the partition where it runs.

  Raises:
    ValueError: an op is within tf.device.
  """
  for op in graph.get_operations():
    if op.device:
      raise ValueError(
        f"layer {layer.name}: op {op.name} ({op.type}) is placed on {op.device}; a "
        "layer runs on the device of its stage, so FProp may not use tf.device"
      )


def check_compiles(graph: tf.Graph, layer: Layer) -> None:
  """Checks that XLA can compile a layer and its gradient apart.

  Raises:
    ValueError: there is a loop or a branch: compiled code cannot hand to the gradient
      what these keep for it.
  """
  graph_def = graph.as_graph_def()
  nodes = [
    *graph_def.node,
    *(n for f in graph_def.library.function for n in f.node_def),
  ]
  for node in nodes:
    if node.op.removeprefix("Stateless") in ("If", "While", "Case"):
      raise ValueError(
        f"pipeline.xla=True: layer {layer.name}: op {node.name} ({node.op}) is a loop "
        "or a branch, whose gradient cannot be compiled apart; set pipeline.xla=False"
      )


# Stateful only if what they call is.
_STATEFUL_CONTROL_FLOW = ("If", "While", "Case", "StatefulPartitionedCall")
