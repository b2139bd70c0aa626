"""What every input is, and the rule that makes a resumed run exact.

The batch of step s is a pure function of (Params, s). Nothing else is remembered: the
order of an epoch is a permutation computed from (seed, epoch), and the randomness of an
example from (seed, how many examples came before it). So an interrupted run continues
with `dataset(start_step=step)`, which starts inside the epoch without reading what went
before, and there is no iterator to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tfpipe.checks import check_bool, check_choice, check_count, check_text
from tfpipe.cost import ArraySpec
from tfpipe.lazy import tf
from tfpipe.nested_map import NestedMap
from tfpipe.params import InstantiableParams

LAST_BATCH = ("drop", "pad")
PREFETCH_BATCHES = 2
MAX_SEED = 2**31 - 1


class Rows(NamedTuple):
  """Which examples make up a batch of B rows.

  Attributes:
    ids: int64 [B], numbers of the examples, in [0, num_examples).
    real: float32 [B], 1, or 0 for a row that only fills the last batch.
    epoch: int64 [], the epoch the batch belongs to.
    counters: int64 [B], how many examples came before the row since step 0.
  """

  ids: tf.Tensor
  real: tf.Tensor
  epoch: tf.Tensor
  counters: tf.Tensor


Reader = Callable[[Rows], dict[str, "tf.Tensor"]]


class Input:
  """A source of batches with static shapes.

  Subclasses define `specs` and `num_examples`, and `_reader` if any example can be read
  by its number (else `_batches`). Constructing one checks its Params; it imports no
  TensorFlow and reads no data.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of this input, with the defaults of training."""
    p = InstantiableParams(cls)
    p.Define("name", "", "Name of the input in reports.")
    p.Define("batch_size", 0, "Rows of a batch (the mini-batch); must be set.")
    p.Define("split", "train", "Which part of the data.")
    p.Define(
      "shuffle",
      True,
      "Whether each epoch has an order of its own; False reads as evaluation does.",
    )
    p.Define("seed", 0, "Seed of all randomness of this input.")
    p.Define(
      "last_batch",
      "drop",
      "What becomes of the examples that fill no whole batch at the end of an epoch: "
      "'drop', or 'pad' with rows of weight 0.",
    )
    p.Define("repeat", True, "Whether another epoch follows an epoch.")
    p.Define(
      "num_shards",
      1,
      "Inputs that share the data: their batches of a step are together the batch that "
      "one input of num_shards times batch_size rows would give.",
    )
    p.Define("shard_index", 0, "Which of the shards this input is, from 0.")
    return p

  @classmethod
  def EvalParams(cls) -> InstantiableParams:
    """Gives the Params of one ordered pass over split 'test', nothing left out."""
    p = cls.Params()
    p.Set(split="test", shuffle=False, repeat=False, last_batch="pad")
    return p

  @classmethod
  def Specs(cls, params: InstantiableParams) -> NestedMap:
    """Gives the `ArraySpec`s of a batch of the input with these Params."""
    return cls(params).specs()

  def __init__(self, params: InstantiableParams) -> None:
    self.params = params.Copy()
    check_count(self, params, "batch_size", 1)
    check_count(self, params, "seed", 0, MAX_SEED)
    check_choice(self, params, "last_batch", LAST_BATCH)
    check_count(self, params, "num_shards", 1)
    check_count(self, params, "shard_index", 0, params.num_shards - 1)
    for key in ("shuffle", "repeat"):
      check_bool(self, params, key)
    for key in ("name", "split"):
      check_text(self, params, key)

  def specs(self) -> NestedMap:
    """Gives the `ArraySpec` of each entry of a batch."""
    raise NotImplementedError(f"{type(self).__name__} defines no specs()")

  def all_specs(self) -> list[NestedMap]:
    """Gives the specs of each shape that a batch can have, the largest last."""
    return [self.specs()]

  @property
  def num_examples(self) -> int:
    """Examples of the split."""
    raise NotImplementedError(f"{type(self).__name__} defines no num_examples")

  @property
  def rows_per_step(self) -> int:
    """Rows that a step takes from the data, by all shards together."""
    return self.params.batch_size * self.params.num_shards

  @property
  def steps_per_epoch(self) -> int:
    """Batches of an epoch, the same for all shards.

    They are n // rows with last_batch 'drop', ceil(n / rows) with 'pad', for the n
    examples of the split and the rows of all shards in a step.

    Raises:
      ValueError: if a batch is larger than the data.
    """
    p, n, rows = self.params, self.num_examples, self.rows_per_step
    if rows > n:
      shards = "" if p.num_shards == 1 else f" by num_shards = {p.num_shards}"
      most = n // p.num_shards
      raise ValueError(
        f"{type(self).__name__}.batch_size = {p.batch_size}{shards} is more than the "
        f"{n} examples of split {p.split!r}; "
        + (f"set it to {most} or less" if most else f"set num_shards to {n} or less")
      )
    return n // rows if p.last_batch == "drop" else -(-n // rows)

  def check_data(self) -> None:
    """Looks for the data before anything is made for it; touches no device.

    Raises:
      ValueError: if a batch is larger than the data, or it is not what Params say.
      LookupError: if the data is not there.
    """
    _ = self.steps_per_epoch

  def dataset(self, start_step: int = 0) -> tf.data.Dataset:
    """Gives the batches of steps start_step, start_step + 1, ...

    Without `repeat` they end with the first epoch.

    Args:
      start_step: the first step, at least 0; without `repeat` at most
        `steps_per_epoch`.

    Returns:
      A deterministic dataset of dicts that match `specs()`.

    Raises:
      ValueError: if start_step is out of range, or a batch larger than the data.
      LookupError: if the data is not there.
    """
    steps = self.steps_per_epoch
    last = None if self.params.repeat else steps
    whole = isinstance(start_step, int) and not isinstance(start_step, bool)
    if not whole or start_step < 0 or (last is not None and start_step > last):
      raise ValueError(
        f"start_step must be an integer of at least 0"
        f"{'' if last is None else f' and at most {last} (one epoch, repeat=False)'}; "
        f"got {start_step!r}"
      )
    batches = self._batches(start_step, steps)
    _check_element_spec(batches, self.all_specs(), type(self).__name__)
    options = tf.data.Options()
    options.deterministic = True
    return batches.with_options(options).prefetch(PREFETCH_BATCHES)

  def _batches(self, start_step: int, steps: int) -> tf.data.Dataset:
    """Gives the batches from start_step on; an epoch has `steps` of them."""
    read = self._reader()
    numbers = (
      tf.data.Dataset.counter(start_step)
      if self.params.repeat
      else tf.data.Dataset.range(start_step, steps)
    )
    return numbers.map(
      lambda step: read(self._rows(step, steps)), num_parallel_calls=tf.data.AUTOTUNE
    )

  def _rows(self, step: tf.Tensor, steps: int) -> Rows:
    """Gives the rows of a step: pure arithmetic on its number, an int64 scalar."""
    p, n = self.params, self.num_examples
    epoch = step // steps
    first = (step - epoch * steps) * self.rows_per_step + p.shard_index * p.batch_size
    slots = first + tf.range(p.batch_size, dtype=tf.int64)
    ids = positions = tf.minimum(slots, n - 1)
    if p.shuffle:
      ids = permuted(positions, n, tf.stack([tf.cast(p.seed, tf.int64), epoch]))
    real = tf.cast(slots < n, tf.float32)
    return Rows(ids, real, epoch, epoch * n + positions)

  def _reader(self) -> Reader:
    """Loads the data and gives the graph function from `Rows` to a batch."""
    raise NotImplementedError(f"{type(self).__name__} defines no _reader()")


def permuted(places: tf.Tensor, size: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Gives the items at some places of a random order of [0, size).

  Args:
    places: int64 [n], in [0, size).
    size: number of items.
    seed: int64 [2]; the order is a pure function of it.

  Returns:
    int64 [n].
  """
  shuffle = tf.random.experimental.index_shuffle  # pyright: ignore[reportAttributeAccessIssue] (not in the stubs)
  return shuffle(places, seed=seed, max_index=size - 1)


def _check_element_spec(
  batches: tf.data.Dataset, shapes: Sequence[NestedMap], owner: str
) -> None:
  """Refuses a dataset whose batches are not what the input announced.

  Planning and tracing believe `all_specs()`, so a difference would show up far from
  here. A dimension that is not the same in all of them is None in the dataset.
  """
  element_spec: Any = batches.element_spec
  made = {k: (tuple(s.shape), s.dtype.name) for k, s in element_spec.items()}
  said = {
    key: (_common(specs[key].shape for specs in shapes), spec.dtype)
    for key, spec in shapes[-1].items()
    if isinstance(spec, ArraySpec)
  }
  if made != said:
    raise ValueError(f"{owner} announces batches of {said} but gives {made}")


def _common(shapes: Iterable[tuple[int, ...]]) -> tuple[int | None, ...]:
  """Gives the shape that some shapes of one rank have in common, None where none."""
  sizes = zip(*shapes, strict=True)
  return tuple(dims[0] if len(set(dims)) == 1 else None for dims in sizes)
