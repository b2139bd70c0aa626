"""Batches of images from a prepared TensorFlow Datasets folder: CIFAR-10, ImageNet, ...

Only files are read, never the network. A folder can't be entered at any example, so an
epoch is a stream of raw records: the files in an order computed from (seed, epoch),
interleaved group by group, and shuffled block by block. Resuming passes over whole
groups of files without opening them, by their sizes in the metadata; of one group
records are read and dropped, and none is decoded. Shards read the same records and
decode their own. TensorFlow's own buffer shuffle is not used: its order depends on the
global seed of the process too.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfpipe import text_files
from tfpipe.checks import check_count, check_text
from tfpipe.input.base import permuted
from tfpipe.input.image_input import AugmentedImageInput
from tfpipe.lazy import tf
from tfpipe.params import InstantiableParams
from tfpipe.spelling import nearest, nearest_or_all

if TYPE_CHECKING:
  import tensorflow_datasets as tfds

METADATA = "features.json"
FILES_AT_ONCE = 16
RECORDS_IN_TURN = 16
NEEDS_MANUAL_DIR = ("cifar10", "imagenet2012")


class TfdsImageInput(AugmentedImageInput):
  """Images and labels of a dataset that was prepared before by tfds.

  AmoebaNet's preprocessing of ImageNet on TPUs is, for training, random_resized_crop,
  random_flip and color_jitter; for evaluation, central_crop = 0.875; and the default
  mean and std of 0.5 in both.
  """

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a tfds input."""
    p = super().Params()
    p.Define(
      "dataset",
      "",
      "Name in tfds, if need be with configuration and version: 'fashion_mnist', "
      "'imagenet2012', 'imagenet_resized/64x64', 'cifar10/3.0.2'.",
    )
    p.Define("data_dir", "~/tensorflow_datasets", "Folder of the prepared datasets.")
    p.Define("num_classes", 0, "Classes of the dataset; must be set, and is compared.")
    p.Define(
      "shuffle_block", 4096, "Records that are shuffled together (shuffle=True)."
    )
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    for key in ("dataset", "data_dir"):
      check_text(self, params, key)
    check_count(self, params, "num_classes", 1)
    check_count(self, params, "shuffle_block", 1)
    if not params.dataset:
      raise ValueError("TfdsImageInput.dataset must be set, for example to 'cifar10'")

  @property
  def num_classes(self) -> int:
    """Labels are in [0, num_classes)."""
    return self.params.num_classes

  @property
  def num_examples(self) -> int:
    """Examples of the split, by the metadata of the prepared folder.

    Raises:
      LookupError: if the dataset isn't there.
      ValueError: if it has no such split, or not what Params say.
    """
    return self._split.num_examples

  def check_data(self) -> None:
    """Looks for the folder, the split and its files; see `Input.check_data`."""
    super().check_data()
    paths = [Path(part.filename) for part in self._split.file_instructions]
    absent = [path for path in paths if not path.is_file()]
    if absent:
      raise LookupError(
        f"{len(absent)} of the {len(paths)} files of {self.params.dataset}, split "
        f"{self.params.split!r}, are missing; the first is {absent[0]}"
      )

  @functools.cached_property
  def _builder(self) -> tfds.core.DatasetBuilder:
    import tensorflow_datasets as tfds

    p = self.params
    folder = find_prepared(p.data_dir, p.dataset)
    if folder is None:
      raise LookupError(_missing_message(p.data_dir, p.dataset))
    builder = tfds.builder_from_directory(str(folder))
    _check_builder(builder, p.num_classes, folder)
    return builder

  @functools.cached_property
  def _split(self) -> Any:
    splits, split = self._builder.info.splits, self.params.split
    try:
      return splits[split]
    except (KeyError, ValueError) as error:
      raise ValueError(
        f"TfdsImageInput.split = {split!r} is not in {self.params.dataset}, which has "
        f"{', '.join(splits)}{nearest(split, splits)}"
      ) from error

  def _batches(self, start_step: int, steps: int) -> tf.data.Dataset:
    p, per_step = self.params, self.rows_per_step
    first_epoch, steps_before = divmod(start_step, steps)
    epochs = (
      tf.data.Dataset.counter(first_epoch)
      if p.repeat
      else tf.data.Dataset.range(first_epoch, 1)
    )

    def records(epoch: tf.Tensor) -> tf.data.Dataset:
      before = tf.constant(steps_before * per_step, tf.int64)
      begin = tf.where(epoch == first_epoch, before, 0)
      return self._epoch(epoch, begin, steps * per_step)

    rows = epochs.flat_map(records)
    if p.num_shards > 1:
      shard = rows.batch(p.batch_size).shard(p.num_shards, p.shard_index)
      rows = shard.unbatch()
    return rows.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE).batch(
      p.batch_size, drop_remainder=True
    )

  def _epoch(self, epoch: tf.Tensor, begin: tf.Tensor, end: int) -> tf.data.Dataset:
    """Gives (raw record, 1 or 0 for padding, counter) of rows [begin, end)."""
    n = self.num_examples
    records = self._records(epoch, begin)
    if end > n:
      part = self._split.file_instructions[0]
      filler = tf.data.TFRecordDataset(str(part.filename)).skip(part.skip).take(1)
      records = records.concatenate(filler.repeat(end - n))
    # A folder with fewer records than its metadata says would shift all later batches.
    whole = tf.data.experimental.assert_cardinality(end - begin)
    records = records.take(end - begin).apply(whole)
    return records.enumerate(begin).map(
      lambda position, record: (
        record,
        tf.cast(position < n, tf.float32),
        epoch * n + tf.minimum(position, n - 1),
      )
    )

  def _records(self, epoch: tf.Tensor, begin: tf.Tensor) -> tf.data.Dataset:
    """Gives the raw records of an epoch in its order, from place `begin` on."""
    p = self.params
    seed = tf.stack([tf.constant(p.seed, tf.int64), epoch])
    parts = self._split.file_instructions
    order = tf.range(len(parts), dtype=tf.int64)
    if p.shuffle:
      order = permuted(order, len(parts), seed)
    columns: Any = {
      "path": tf.gather([str(part.filename) for part in parts], order),
      "skip": tf.gather(tf.constant([part.skip for part in parts], tf.int64), order),
      "take": tf.gather(tf.constant([part.take for part in parts], tf.int64), order),
    }
    block = p.shuffle_block if p.shuffle else 1
    first_block = begin // block
    records = _read(columns, FILES_AT_ONCE if p.shuffle else 1, first_block * block)
    if p.shuffle:
      records = _shuffle_blocks(records, block, first_block, seed)
    return records.skip(begin - first_block * block)

  def _decode(self, record: tf.Tensor, real: tf.Tensor, counter: tf.Tensor) -> dict:
    import tensorflow_datasets as tfds

    features: Any = self._builder.info.features
    example = features.deserialize_example(
      record, decoders={"image": tfds.decode.SkipDecoding()}
    )
    image = tf.io.decode_image(
      example["image"], channels=self.params.channels, expand_animations=False
    )
    return {
      "image": self._prepare(image, counter),
      "label": tf.cast(example["label"], tf.int32),
      "weight": real,
    }


def find_prepared(data_dir: str, dataset: str) -> Path | None:
  """Gives the folder of a prepared dataset (its newest version), or None."""
  root = text_files.home(data_dir, f"TfdsImageInput.data_dir = {data_dir!r}") / dataset
  versions = sorted(
    (path for path in root.glob("*.*.*") if _version(path)), key=_version, reverse=True
  )
  for folder in (root, *versions):
    if (folder / METADATA).is_file():
      return folder
  return None


def _version(path: Path) -> tuple[int, ...]:
  """Gives (1, 0, 2) for a folder named 1.0.2, and () for other names."""
  parts = path.name.split(".")
  return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _read(
  files: dict[str, tf.Tensor], at_once: int, begin: tf.Tensor
) -> tf.data.Dataset:
  """Reads files, so many at once, in turn, and then the next; from place `begin` on.

  Args:
    files: path, and how many records to skip and then to take, of each.
    at_once: number of files that are interleaved.
    begin: int64, place of the first record; files before it are not opened.
  """
  ends = tf.concat([[0], tf.cumsum(files["take"])[at_once - 1 :: at_once]], axis=0)
  passed = tf.reduce_sum(tf.cast(ends[1:] <= begin, tf.int32))
  rest: Any = {name: value[passed * at_once :] for name, value in files.items()}

  def read_in_turn(group: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(group).interleave(
      lambda part: (
        tf.data.TFRecordDataset(part["path"]).skip(part["skip"]).take(part["take"])
      ),
      cycle_length=at_once,
      block_length=RECORDS_IN_TURN,
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
    )

  groups = tf.data.Dataset.from_tensor_slices(rest).batch(at_once)
  return groups.flat_map(read_in_turn).skip(begin - ends[passed])


def _shuffle_blocks(
  records: tf.data.Dataset, block: int, first: tf.Tensor, seed: tf.Tensor
) -> tf.data.Dataset:
  """Shuffles each `block` records among themselves: a pure function of the seed.

  Args:
    records: whole blocks but for the last.
    block: records of a block.
    first: int64, number of the first block.
    seed: int64 [2].
  """

  def shuffled(number: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    size = tf.size(values, out_type=tf.int64)
    block_seed: Any = tf.random.fold_in(seed, number)  # pyright: ignore[reportArgumentType] (the stubs know ints only)
    order = permuted(tf.range(size), size, block_seed)
    return tf.gather(values, order)

  return records.batch(block).enumerate(first).map(shuffled).unbatch()


def _check_builder(
  builder: tfds.core.DatasetBuilder, num_classes: int, folder: Path
) -> None:
  """Refuses a dataset that isn't images with as many classes as Params say."""
  features: Any = builder.info.features
  absent = {"image", "label"} - set(features)
  if absent:
    raise ValueError(
      f"{folder} has no feature {' or '.join(sorted(absent))}; it has "
      f"{', '.join(features)}"
    )
  if features["label"].num_classes != num_classes:
    raise ValueError(
      f"TfdsImageInput.num_classes = {num_classes}, but {folder} has "
      f"{features['label'].num_classes} classes"
    )
  stored = builder.info.file_format
  if stored is None or stored.value != "tfrecord":
    raise ValueError(f"{folder} is stored as {stored}; TfdsImageInput reads tfrecord")


def _missing_message(data_dir: str, dataset: str) -> str:
  """Says what is missing, where, and which command prepares it, or what was meant."""
  absent = f"TfdsImageInput.dataset = {dataset!r} is not in {data_dir}"
  root = Path(data_dir).expanduser()
  name = dataset.partition("/")[0]
  others = sorted(path.parent for path in (root / name).rglob(METADATA))
  if others:
    found = ", ".join(str(path.relative_to(root)) for path in others)
    return f"{absent}, which has {found}"
  unknown = _unknown_to_tfds(dataset, [path.name for path in root.glob("*")])
  if unknown:
    return f"{absent}, and {unknown}"
  if dataset == "fashion_mnist":
    options = "--source=auto"
  elif dataset in NEEDS_MANUAL_DIR:
    options = "--manual_dir=FOLDER_OF_DOWNLOADS --allow_download"
  else:
    return (
      f"{absent}; tfpipe downloads nothing: prepare it with tfds build {dataset} "
      f"--data_dir={data_dir}"
    )
  return (
    f"{absent}; tfpipe downloads nothing: prepare it with python -m tools.prepare_data "
    f"--dataset={dataset} --data_dir={data_dir} {options}"
  )


def _unknown_to_tfds(dataset: str, folders: list[str]) -> str:
  """Says which part of a name tfds does not know, and what is near; else ''."""
  import tensorflow_datasets as tfds

  name, _, rest = dataset.partition("/")
  names = tfds.list_builders(with_community_datasets=False)
  if name not in names:
    return f"tfds knows no {name!r}{nearest(name, [*names, *folders])}"
  config = rest.partition("/")[0]
  configs: Any = tfds.builder_cls(name).builder_configs
  if config and not _version(Path(config)) and config not in configs:
    return f"{name} has no configuration {config!r}{nearest_or_all(config, configs)}"
  return ""
